"""Texts tokenised again: a row is exact if its length is the trace's and each id has its own tokens, ever the same."""

from __future__ import annotations

import numpy as np

from .blocks import Blocks


class Verifier:
    """Compares texts with the ids they were made of, batch by batch.

    It keeps a 64-bit sum of each block's tokens, weighted by place: two are equal by chance once in some 2^60 times.
    """

    def __init__(self, blocks: Blocks):
        self._blocks = blocks
        longest = int(blocks.size.max()) if len(blocks.size) else 0
        self._weights = np.random.default_rng(0xB10C).integers(1 << 63, size=longest, dtype=np.uint64) * 2 + 1
        self._found = np.zeros(len(blocks.size), dtype=np.uint64)  # id -> the sum of its tokens where it was first seen
        self._seen = np.zeros(len(blocks.size), dtype=bool)
        self._is_exact = np.zeros(len(blocks), dtype=bool)  # row -> length and tokens of each block as they should be

    def add(self, row: int, tokens: np.ndarray, offsets: np.ndarray) -> None:
        """The tokens of consecutive rows' texts, end to end; `row` is the first."""
        blocks = self._blocks
        rows = np.arange(row, row + len(offsets) - 1)
        right = np.diff(offsets) == blocks.lengths[rows]
        for place in np.flatnonzero(right):
            self._is_exact[rows[place]] = self._same(rows[place], tokens[offsets[place] : offsets[place + 1]])

    def _same(self, row, tokens):
        start, stop = self._blocks.offsets[row : row + 2]
        ids = self._blocks.ids[start:stop]
        if not len(ids):
            return True
        sums = self._sums(tokens)
        new = ~self._seen[ids]
        self._found[ids[new]], self._seen[ids[new]] = sums[new], True
        return bool((self._found[ids] == sums).all())

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
        """Rows that came back exactly: no block of theirs has the tokens of a sibling either."""
        blocks, twin = self._blocks, np.zeros(len(self._found), dtype=bool)
        order = np.lexsort((self._found, blocks.size, blocks.parent))
        keys = (blocks.parent[order], blocks.size[order], self._found[order])
        same = np.logical_and.reduce([key[1:] == key[:-1] for key in keys]) if len(order) > 1 else np.zeros(0, bool)
        twin[order[1:][same]] = twin[order[:-1][same]] = True
        doubtful = np.concatenate([[0], np.cumsum(twin[blocks.ids])])[blocks.offsets]
        return int((self._is_exact & (np.diff(doubtful) == 0)).sum())
