"""The result of reading a trace file, before it is normalised or verified."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._base.errors import RowError
from ..trace.columns import Columns
from ..trace.normalise import Fixes
from .sidecar import Sidecar


@dataclass
class ReadResult:
    """The columns of a file, and the line of each row."""

    columns: Columns
    path: str
    format: str
    lines: np.ndarray | None = None  # row -> line, from 1; None = row r is on line r + 1
    sidecar: Sidecar | None = None
    lost_parents: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows whose parent does not exist
    repeated: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows with the name of an earlier row
    fixes: Fixes = field(default_factory=Fixes)  # changes that the reader made
    nested: dict[str, int] = field(default_factory=dict)  # field of lists or objects, which are not read -> rows
    lengths_only: bool = False  # no row has block ids: shared prefixes are unknown

    def line(self, row: int) -> int:
        """The line of a row, from 1; in a Parquet file, the row from 1."""
        return int(row) + 1 if self.lines is None else int(self.lines[row])

    def error(self, row: int, reason: str, hint: str | None = None) -> RowError:
        """An error in a row, with its file and line."""
        return RowError(reason, hint=hint).at(self.path, self.line(row))
