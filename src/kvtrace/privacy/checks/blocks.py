"""The requests of an audited file (AuditedRequests), and the blocks of some of them (RequestBlocks)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...trace.columns import Columns


@dataclass(eq=False)
class AuditedRequests:
    """The rows of a file that are valid requests, in time order: the columns of a Trace without the blocks."""

    timestamp: np.ndarray  # ms since the first
    input_length: np.ndarray
    output_length: np.ndarray
    session: np.ndarray | None
    parent: np.ndarray | None  # request, -1 = none
    block_size: int
    tail: str
    rows: np.ndarray  # request -> row of the file
    in_order: bool  # whether the file's rows are in time order

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def full_blocks(self) -> np.ndarray:
        """Full blocks of each prompt, without its tail block."""
        return self.input_length // self.block_size

    @property
    def has_sessions(self) -> bool:
        """Whether the session of any request is known."""
        return self.session is not None and bool((self.session >= 0).any())


@dataclass
class RequestBlocks:
    """The blocks of some requests, numbered by first appearance in the file."""

    requests: np.ndarray  # row here -> request
    numbers: np.ndarray
    offsets: np.ndarray
    output_numbers: np.ndarray | None = None
    output_offsets: np.ndarray | None = None

    def columns(self) -> Columns:
        """The numbers as the ids of Columns, whose other columns are empty."""
        nothing = np.empty(0, dtype=np.int64)
        return Columns(
            nothing, nothing, nothing, self.numbers, self.offsets,
            output_ids=self.output_numbers, output_offsets=self.output_offsets,
        )  # fmt: skip

    def segments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(numbers, offsets) of the prompts, and of the outputs if they have blocks."""
        prompts = [(self.numbers, self.offsets)]
        if self.output_numbers is None or self.output_offsets is None:
            return prompts
        return [*prompts, (self.output_numbers, self.output_offsets)]
