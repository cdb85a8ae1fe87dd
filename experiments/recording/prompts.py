"""Tokens of a trace's requests: equal blocks have equal tokens, and all others differ."""

from __future__ import annotations

import numpy as np

from kvtrace._base.arrays import split_mix
from kvtrace.trace.trace import Trace

PER_BLOCK = np.int64(1) << 20  # more than the tokens of a block
OWN = np.int64(1) << 62  # above all tokens of blocks: those of a request without a block


class Tokens:
    """The tokens of each prompt, from its blocks' ids, and of each output, from its row.

    >>> from kvtrace.trace.building import toy
    >>> tokens = Tokens(toy("0 1", "0 2", block_size=2), 1000)
    >>> (tokens.of(0)[:4] == tokens.of(1)[:4]).tolist()
    [True, True, False, False]
    """

    def __init__(self, trace: Trace, vocabulary: int):
        self.trace, self.vocabulary = trace, vocabulary
        self._rows: dict[int, np.ndarray] = {}

    def of(self, row: int) -> np.ndarray:
        """All tokens of a request, int64: its prompt, then its output."""
        if row not in self._rows:
            self._rows[row] = self._drawn(row)
        return self._rows[row]

    def _drawn(self, row):
        trace, size = self.trace, self.trace.block_size
        prompt = max(int(trace.input_length[row]), 1)
        place = np.arange(prompt + max(int(trace.output_length[row]), 1))
        seeds = OWN + row * PER_BLOCK * size + place
        ids = trace.prompt(row)
        known = min(len(ids) * size, prompt)
        seeds[:known] = np.repeat(ids, size)[:known] * PER_BLOCK + place[:known] % size
        return (split_mix(seeds) % np.uint64(self.vocabulary)).astype(np.int64)
