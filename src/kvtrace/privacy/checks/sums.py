"""What one pass over the blocks sums up: how often each is used, what it follows, which are tails, which come first."""

from __future__ import annotations

import numpy as np

from .blocks import Blocks, Requests
from .parents import Parents
from .tail_blocks import Tails


class Sums:
    """The sums of all checks that need nothing but the blocks themselves."""

    def __init__(self, requests: Requests, distinct: int):
        self.uses, self.parents = Uses(distinct), Parents(distinct, requests.full_blocks)
        self.tails = Tails(requests)
        self.first_block = np.full(len(requests), -1, dtype=np.int32)  # request -> its first block, -1 = none

    def take(self, blocks: Blocks) -> None:
        """Add the blocks of some requests."""
        self.uses.take(blocks)
        self.parents.take(blocks)
        self.tails.take(blocks)
        filled = np.diff(blocks.offsets) > 0
        self.first_block[blocks.requests[filled]] = blocks.numbers[blocks.offsets[:-1][filled]]


class Uses:
    """How often each block is used: 4 bytes a block, and 4 more where outputs have blocks."""

    def __init__(self, distinct: int):
        self.in_prompts = np.zeros(distinct, dtype=np.int32)
        self.anywhere = self.in_prompts  # ... in outputs as well

    def take(self, blocks: Blocks) -> None:
        """Count the blocks of some requests."""
        if blocks.output_numbers is not None and self.anywhere is self.in_prompts:
            self.anywhere = self.in_prompts.copy()
        if self.anywhere is not self.in_prompts:
            for numbers, _ in blocks.parts():
                np.add.at(self.anywhere, numbers, np.int32(1))
        np.add.at(self.in_prompts, blocks.numbers, np.int32(1))
