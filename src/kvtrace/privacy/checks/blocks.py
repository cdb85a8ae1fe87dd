"""What the checks count: the requests of a release, and the blocks of some of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(eq=False)
class Requests:
    """The rows of a file that make a trace, in time order: what a Trace knows of them, but for their blocks."""

    timestamp: np.ndarray  # ms since the first
    input_length: np.ndarray
    output_length: np.ndarray
    session: np.ndarray | None
    parent: np.ndarray | None  # -1 where it is none of them
    block_size: int
    tail: str
    rows: np.ndarray  # request -> row of the file
    in_order: bool  # the file's rows do not go back in time

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def full_blocks(self) -> np.ndarray:
        """Full blocks of each prompt: the tail is not one of them."""
        return self.input_length // self.block_size

    @property
    def has_sessions(self) -> bool:
        """Whether any request is known to belong to one."""
        return self.session is not None and bool((self.session >= 0).any())


@dataclass
class Blocks:
    """The blocks of some requests, as numbers by first appearance in the file."""

    requests: np.ndarray  # of each prompt here, its place in the trace
    numbers: np.ndarray
    offsets: np.ndarray
    output_numbers: np.ndarray | None = None
    output_offsets: np.ndarray | None = None

    def parts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(numbers, offsets) of the prompts, and of the outputs where there are some."""
        prompts = [(self.numbers, self.offsets)]
        if self.output_numbers is None or self.output_offsets is None:
            return prompts
        return [*prompts, (self.output_numbers, self.output_offsets)]
