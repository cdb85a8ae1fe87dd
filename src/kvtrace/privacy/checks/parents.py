"""The parent of each block: whether the blocks of a release form a forest."""

from __future__ import annotations

from typing import Any

import numpy as np

from .blocks import RequestBlocks

UNSEEN = -2


class BlockParents:
    """The parents of the blocks seen so far. Memory: 5 bytes a block, and 4 more if outputs have blocks."""

    are_one: bool

    def __init__(self, distinct: int, full_blocks: np.ndarray):
        self.are_one = True  # each block of prompts and outputs always has the same parent
        self._full_blocks = full_blocks
        self._several = 0
        self._are_dense, self._distinct = True, 0  # numbers so far count up by first appearance, in a forest
        self._in_prompts: Any = np.full(distinct, UNSEEN, dtype=np.int32)  # block -> parent, -1 = root
        self._anywhere: Any = None  # the same in prompts and outputs
        self._has_several: Any = np.zeros(distinct, dtype=bool)

    @property
    def several(self) -> int:
        """The number of blocks with more than one parent in prompts."""
        return self._several if self._has_several is None else int(np.count_nonzero(self._has_several))

    def end(self) -> None:
        """Free the parents after the last block; the results stay."""
        self._several = self.several
        self._in_prompts = self._anywhere = self._has_several = None

    def take(self, blocks: RequestBlocks) -> None:
        """Add the blocks of some requests."""
        if self._take_forest(blocks):
            return
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

    def _take_forest(self, blocks: RequestBlocks) -> bool:
        """Add rows without outputs whose blocks form a forest with all before them, faster; False for other rows."""
        from ..._native import forest

        if not self._are_dense or blocks.output_numbers is not None:
            self._are_dense = False
            return False
        full = self._full_blocks[blocks.requests]
        self._distinct, gap, fork = forest.verify(
            blocks.numbers, blocks.offsets, full, parent=self._in_prompts, distinct=self._distinct
        )
        self._are_dense = gap < 0 and fork < 0
        return self._are_dense

    def _last_full(self, blocks):
        """The last full block of each prompt, which is the parent of its output; -1 = none."""
        last = np.full(len(blocks.requests), -1, dtype=np.int64)
        full = np.minimum(self._full_blocks[blocks.requests], np.diff(blocks.offsets))
        has_full = full > 0
        last[has_full] = blocks.numbers[blocks.offsets[:-1][has_full] + full[has_full] - 1]
        return last


def _before(numbers, offsets, first) -> np.ndarray:
    """The predecessor of each number in its row; `first` for the first of a row."""
    before = np.empty_like(numbers)
    before[1:] = numbers[:-1]
    filled = np.diff(offsets) > 0
    before[offsets[:-1][filled]] = first if np.isscalar(first) else first[filled]
    return before


def _differing(parent, numbers, before) -> np.ndarray:
    """Whether each block has another parent than at its first appearance; new blocks are added to `parent`."""
    new = parent[numbers] == UNSEEN
    parent[numbers[new][::-1]] = before[new][::-1]  # reversed, so that the first appearance is written last
    return parent[numbers] != before
