"""The sums of one pass over the blocks: uses, parents, tail blocks, first blocks."""

from __future__ import annotations

import numpy as np

from .blocks import AuditedRequests, RequestBlocks
from .parents import BlockParents
from .tail_sums import TailBlocks


class BlockSums:
    """The sums that several checks share."""

    uses: BlockUses
    parents: BlockParents
    tails: TailBlocks

    def __init__(self, requests: AuditedRequests, distinct: int):
        self.uses, self.parents = BlockUses(distinct), BlockParents(distinct, requests.full_blocks)
        self.tails = TailBlocks(requests)
        self.first_block = np.full(len(requests), -1, dtype=np.int32)  # request -> its first block, -1 = none

    def take(self, blocks: RequestBlocks) -> None:
        """Add the blocks of some requests."""
        self.uses.take(blocks)
        self.parents.take(blocks)
        self.tails.take(blocks)
        filled = np.diff(blocks.offsets) > 0
        self.first_block[blocks.requests[filled]] = blocks.numbers[blocks.offsets[:-1][filled]]


class BlockUses:
    """The number of uses of each block. Memory: 4 bytes a block, and 4 more if outputs have blocks."""

    def __init__(self, distinct: int):
        self.in_prompts = np.zeros(distinct, dtype=np.int32)
        self.anywhere = self.in_prompts  # in prompts and outputs

    def take(self, blocks: RequestBlocks) -> None:
        """Count the blocks of some requests."""
        if blocks.output_numbers is not None and self.anywhere is self.in_prompts:
            self.anywhere = self.in_prompts.copy()
        if self.anywhere is not self.in_prompts:
            for numbers, _ in blocks.segments():
                np.add.at(self.anywhere, numbers, np.int32(1))
        np.add.at(self.in_prompts, blocks.numbers, np.int32(1))
