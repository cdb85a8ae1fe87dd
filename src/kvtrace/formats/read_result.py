"""What a reader found in a trace file, before anything is normalised or verified."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._base.errors import RowError
from ..trace.columns import Columns
from .sidecar import Sidecar


@dataclass
class Found:
    """The columns as they stand in a file, and where each row stands."""

    columns: Columns
    path: str
    format: str
    lines: np.ndarray | None = None  # row -> line, from 1; None where row r is on line r + 1
    sidecar: Sidecar | None = None
    lost_parents: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows whose parent no row holds
    repeated: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows that bear an earlier one's name
    nested: dict[str, int] = field(default_factory=dict)  # key of lists and objects that were left out -> rows

    def line(self, row: int) -> int:
        """The line of a row, from 1; in a Parquet file, the row from 1."""
        return int(row) + 1 if self.lines is None else int(self.lines[row])

    def error(self, row: int, reason: str, hint: str | None = None) -> RowError:
        """What is wrong with a row, knowing where it stands."""
        return RowError(reason, hint=hint).at(self.path, self.line(row))
