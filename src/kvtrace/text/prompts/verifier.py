"""Verify texts by tokenising them again. A row is exact if its length and the tokens of each of its ids are right."""

from __future__ import annotations

import numpy as np

from ..._base.offsets import offsets_of
from .blocks import PromptBlocks


class Verifier:
    """Compares the tokens of texts with the ids that they were made of, batch by batch.

    It stores a 64-bit weighted sum of each block's tokens. Different blocks have equal sums with a probability of about
    2^-60.
    """

    def __init__(self, blocks: PromptBlocks):
        self._blocks = blocks
        longest = int(blocks.size.max()) if len(blocks.size) else 0
        self._weights = np.random.default_rng(0xB10C).integers(1 << 63, size=longest, dtype=np.uint64) * 2 + 1
        self._sum_of = np.zeros(len(blocks.size), dtype=np.uint64)  # id -> sum of its tokens at first sight
        self._seen = np.zeros(len(blocks.size), dtype=bool)
        self._is_exact = np.zeros(len(blocks), dtype=bool)  # row -> its length and its blocks are right

    def add(self, row: int, tokens: np.ndarray, offsets: np.ndarray) -> None:
        """Add the tokens of consecutive rows' texts, end to end; `row` is the first row."""
        blocks = self._blocks
        rows = np.arange(row, row + len(offsets) - 1)
        has_length = np.diff(offsets) == blocks.lengths[rows]
        for i in np.flatnonzero(has_length):
            self._is_exact[rows[i]] = self._has_same_blocks(rows[i], tokens[offsets[i] : offsets[i + 1]])

    def _has_same_blocks(self, row, tokens):
        start, stop = self._blocks.offsets[row : row + 2]
        ids = self._blocks.ids[start:stop]
        if not len(ids):
            return True
        sums = self._sums(tokens)
        new = ~self._seen[ids]
        self._sum_of[ids[new]], self._seen[ids[new]] = sums[new], True
        return bool((self._sum_of[ids] == sums).all())

    def _sums(self, tokens):
        size = self._blocks.block_size
        full = len(tokens) // size
        sums = np.empty(-(-len(tokens) // size), dtype=np.uint64)
        values = tokens.astype(np.uint64) + np.uint64(1)
        sums[:full] = values[: full * size].reshape(full, size) @ self._weights[:size] if full else 0
        if full < len(sums):
            rest = values[full * size :]
            sums[full] = rest @ self._weights[: len(rest)]
        return sums

    def exact(self) -> int:
        """The number of exact rows. A block with the same tokens as a sibling makes its rows inexact."""
        blocks, has_twin = self._blocks, np.zeros(len(self._sum_of), dtype=bool)
        order = np.lexsort((self._sum_of, blocks.size, blocks.parent))
        keys = (blocks.parent[order], blocks.size[order], self._sum_of[order])
        same = np.logical_and.reduce([key[1:] == key[:-1] for key in keys]) if len(order) > 1 else np.zeros(0, bool)
        has_twin[order[1:][same]] = has_twin[order[:-1][same]] = True
        doubtful = offsets_of(has_twin[blocks.ids])[blocks.offsets]
        return int((self._is_exact & (np.diff(doubtful) == 0)).sum())
