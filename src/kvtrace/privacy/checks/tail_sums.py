"""The tail blocks of a release, and their tokens."""

from __future__ import annotations

import numpy as np

from .blocks import AuditedRequests, RequestBlocks


class TailBlocks:
    """The tail blocks of prompts, and of prompts with their outputs. Memory: 8 bytes each."""

    def __init__(self, requests: AuditedRequests):
        self._requests = requests
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int32), np.empty(0, np.int32))]

    @property
    def numbers(self) -> np.ndarray:
        """The block of each tail."""
        return np.concatenate([numbers for numbers, _ in self._pieces])

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of each tail, in the order of `numbers`."""
        return np.concatenate([tokens for _, tokens in self._pieces])

    def take(self, blocks: RequestBlocks) -> None:
        """Add the tail blocks of some requests."""
        if self._requests.tail == "dropped":
            return
        tokens, size = self._requests.input_length[blocks.requests], self._requests.block_size
        self._add(blocks.numbers, blocks.offsets, tokens % size)
        if blocks.output_numbers is not None:
            both = tokens + self._requests.output_length[blocks.requests]
            self._add(blocks.output_numbers, blocks.output_offsets, both % size)

    def _add(self, numbers, offsets, tokens):
        has_tail = (tokens > 0) & (np.diff(offsets) > 0)
        self._pieces.append((numbers[offsets[1:][has_tail] - 1].astype(np.int32), tokens[has_tail].astype(np.int32)))
