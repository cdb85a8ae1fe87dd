"""Rows of a synthetic trace before their blocks have final ids: what a stream of requests hands on, in chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class Draft:
    """Some consecutive rows of one stream.

    Block numbers are the stream's own: a new block has the next number, so a path is a leading run of numbers that were
    seen before and then consecutive new ones. A block always stands for the same number of tokens.
    """

    arrival: np.ndarray  # row -> ms, never falling within a stream
    offsets: np.ndarray  # row r's path is blocks[offsets[r]:offsets[r + 1]]
    blocks: np.ndarray  # int32: the paths, end to end
    tail: np.ndarray  # row -> tokens in its last block, 1 ... block_size
    output_length: np.ndarray  # row -> tokens
    session: np.ndarray  # row -> the stream's number of its session, -1 = none
    parent: np.ndarray  # row -> row of the stream that was the previous turn, -1 = none
    extra: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def path_blocks(self) -> np.ndarray:
        """Blocks of each path."""
        return np.diff(self.offsets)

    def input_length(self, block_size: int) -> np.ndarray:
        """Prompt tokens of each row.

        >>> one = Draft(*(np.array(values) for values in ([0.0], [0, 2], [0, 1], [3], [1], [-1], [-1])))
        >>> one.input_length(512).tolist()
        [515]
        """
        return (self.path_blocks - 1) * block_size + self.tail

    def head(self, rows: int) -> Draft:
        """The first rows."""
        return Draft(
            self.arrival[:rows], self.offsets[: rows + 1], self.blocks[: self.offsets[min(rows, len(self))]],
            self.tail[:rows], self.output_length[:rows], self.session[:rows], self.parent[:rows],
            {name: column[:rows] for name, column in self.extra.items()},
        )  # fmt: skip
