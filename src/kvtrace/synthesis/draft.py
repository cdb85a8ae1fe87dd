"""A draft: rows of a synthetic trace whose blocks do not have their final ids yet."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class Draft:
    """Consecutive rows of one stream.

    Each stream numbers its own blocks. A new block gets the next number, so a path is a run of numbers seen before,
    followed by consecutive new numbers. A block always has the same number of tokens.
    """

    arrival: np.ndarray  # row -> ms, never falling within a stream
    offsets: np.ndarray  # the path of row r is blocks[offsets[r]:offsets[r + 1]]
    blocks: np.ndarray  # the concatenated paths: int32, or int64 once streams are merged
    tail: np.ndarray  # row -> tokens in its last block, 1 ... block_size
    output_length: np.ndarray  # row -> tokens
    session: np.ndarray  # row -> session, numbered by the stream, -1 = none
    parent: np.ndarray  # row -> row of the previous turn in the stream, -1 = none
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
        """The first `rows` rows."""
        return Draft(
            self.arrival[:rows], self.offsets[: rows + 1], self.blocks[: self.offsets[min(rows, len(self))]],
            self.tail[:rows], self.output_length[:rows], self.session[:rows], self.parent[:rows],
            {name: column[:rows] for name, column in self.extra.items()},
        )  # fmt: skip
