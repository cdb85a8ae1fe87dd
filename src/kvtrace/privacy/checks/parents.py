"""What each block follows: whether the blocks of a release form a forest."""

from __future__ import annotations

from typing import Any

import numpy as np

from .blocks import Blocks

UNSEEN = -2


class Parents:
    """What blocks follow, as far as they were seen: 5 bytes a block, and 4 more where outputs have blocks."""

    def __init__(self, distinct: int, full_blocks: np.ndarray):
        self.are_one = True  # each block, of prompts and outputs, always follows the same one
        self._full_blocks = full_blocks
        self._several = 0
        self._in_prompts: Any = np.full(distinct, UNSEEN, dtype=np.int32)  # block -> what it follows, -1 = it is a root
        self._anywhere: Any = None  # ... in outputs as well
        self._has_several: Any = np.zeros(distinct, dtype=bool)

    @property
    def several(self) -> int:
        """How many blocks of prompts have more than one parent there."""
        return self._several if self._has_several is None else int(np.count_nonzero(self._has_several))

    def end(self) -> None:
        """All blocks were seen: what they follow is forgotten, and what was found stays."""
        self._several = self.several
        self._in_prompts = self._anywhere = self._has_several = None

    def take(self, blocks: Blocks) -> None:
        """Look at the blocks of some requests."""
        numbers, before = blocks.numbers, _before(blocks.numbers, blocks.offsets, -1)
        wrong = _differing(self._in_prompts, numbers, before)
        self._has_several[numbers[wrong]] = True
        self.are_one = self.are_one and not wrong.any()
        if blocks.output_numbers is None and self._anywhere is None:
            return
        if self._anywhere is None:
            self._anywhere = self._in_prompts.copy()
        self.are_one = self.are_one and not _differing(self._anywhere, numbers, before).any()
        if blocks.output_numbers is not None:
            begins = self._last_full(blocks)
            after = _before(blocks.output_numbers, blocks.output_offsets, begins)
            self.are_one = self.are_one and not _differing(self._anywhere, blocks.output_numbers, after).any()

    def _last_full(self, blocks):
        """The last full block of each prompt, which its output follows; -1 where there is none."""
        last = np.full(len(blocks.requests), -1, dtype=np.int64)
        full = np.minimum(self._full_blocks[blocks.requests], np.diff(blocks.offsets))
        some = full > 0
        last[some] = blocks.numbers[blocks.offsets[:-1][some] + full[some] - 1]
        return last


def _before(numbers, offsets, first) -> np.ndarray:
    """What stands before each number in its row; `first` before the first of a row."""
    before = np.empty_like(numbers)
    before[1:] = numbers[:-1]
    filled = np.diff(offsets) > 0
    before[offsets[:-1][filled]] = first if np.isscalar(first) else first[filled]
    return before


def _differing(parent, numbers, before) -> np.ndarray:
    """Where blocks do not follow what they were first seen to follow; those that are new are noted in `parent`."""
    new = parent[numbers] == UNSEEN
    parent[numbers[new][::-1]] = before[new][::-1]  # the first one is written last
    return parent[numbers] != before
