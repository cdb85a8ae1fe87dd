"""The tail blocks of a release, and their tokens."""

from __future__ import annotations

import numpy as np

from .blocks import Blocks, Requests


class Tails:
    """The tail blocks of prompts, and of prompts and outputs together: 8 bytes each."""

    def __init__(self, requests: Requests):
        self._requests = requests
        self._found: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int32), np.empty(0, np.int32))]

    @property
    def numbers(self) -> np.ndarray:
        """The block of each tail."""
        return np.concatenate([numbers for numbers, _ in self._found])

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of each tail, in the order of `numbers`."""
        return np.concatenate([tokens for _, tokens in self._found])

    def take(self, blocks: Blocks) -> None:
        """Note the tails of some requests."""
        if self._requests.tail == "dropped":
            return
        tokens, size = self._requests.input_length[blocks.requests], self._requests.block_size
        self._note(blocks.numbers, blocks.offsets, tokens % size)
        if blocks.output_numbers is not None:
            both = tokens + self._requests.output_length[blocks.requests]
            self._note(blocks.output_numbers, blocks.output_offsets, both % size)

    def _note(self, numbers, offsets, tokens):
        held = (tokens > 0) & (np.diff(offsets) > 0)
        self._found.append((numbers[offsets[1:][held] - 1].astype(np.int32), tokens[held].astype(np.int32)))
