"""An open trace: its rows piece by piece, and after one pass its other columns, fields and metadata.

A file is read again for each pass, so that memory holds only a piece of its block ids. A small file stays in memory, as
does one that cannot be read twice, such as stdin.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .._base.errors import RowError
from .._base.files import name_of
from ..trace.columns import Columns, replace_columns, rows_of
from .read_result import ReadResult
from .seen_words import SeenWords
from .sidecar import is_deep

CACHED = 1 << 20  # maximum block references of a file that stay in memory
KNOWN = ("timestamp", "input_length", "output_length")

Piece = tuple[slice, Columns]  # rows of the file, and their columns


@dataclass
class MetadataText:
    """A sidecar or another piece of metadata; `fault` is the reason why it is not valid."""

    where: str
    values: Any = None
    fault: str | None = None
    text: bytes | None = None  # as it is in the file


class OpenTrace(ABC):
    """An open trace file or data set. Everything but `pieces` is known after the first complete pass.

    >>> import tempfile
    >>> from kvtrace.formats import writing
    >>> from kvtrace.formats.open_pieces import open_pieces
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = writing.write(toy("0 1", "0 2"), f"{folder}/day.jsonl")
    ...     opened = open_pieces(f"{folder}/day.jsonl")
    ...     [columns.hash_ids.tolist() for rows, columns in opened.pieces()], opened.result.columns.offsets.tolist()
    ([[0, 1, 0, 2]], [0, 2, 4])
    """

    path: str | Path
    name: str
    repeats: bool
    seen: SeenWords

    result: ReadResult  # its columns have offsets but no block ids
    fields: dict[str, np.ndarray]  # field -> scalar values as in the file, None where a row has none; without the ids

    def __init__(self, path: str | Path, *, repeats: bool):
        self.path, self.name, self.repeats = path, name_of(path), repeats
        self.seen = SeenWords()  # of the first pass; unused for Parquet that is not compressed
        self.growth = 1.0  # ratio of the whole file to what the first pass has read, where it is known
        self.unread: list[RowError] = []  # rows that could not be read
        self.texts: list[MetadataText] = []  # metadata inside the file
        self.unknown_columns: dict[str, int] = {}  # columns of a Parquet file that are not read -> rows
        self.unknown_files = 0  # files in a data set's folder that do not belong to it
        self._kept: list[Piece] | None = []
        self._is_read = False

    def pieces(self) -> Iterator[Piece]:
        """All rows in order. The ids are in every pass; sessions and other fields only where the format has them.

        The next piece may reuse the arrays of the last one.
        """
        if not self._is_read:
            yield from self._first_pass()
        elif self._kept is not None:
            yield from self._kept
        else:
            yield from self._again()

    def read(self) -> OpenTrace:
        """Read all rows once, unless that has happened."""
        for _ in self.pieces() if not self._is_read else ():
            pass
        return self

    def _first_pass(self) -> Iterator[Piece]:
        references = 0
        for rows, columns in self._read():
            references += len(columns.hash_ids) + (0 if columns.output_ids is None else len(columns.output_ids))
            if self.repeats and references > CACHED:
                self._kept = None
            if self._kept is not None:
                self._kept.append((rows, ids_alone(columns)))
            yield rows, columns
        self._is_read = True

    @abstractmethod
    def _read(self) -> Iterator[Piece]:
        """The pieces of the first pass, which collects everything else."""

    @abstractmethod
    def _again(self) -> Iterator[Piece]:
        """The pieces of another pass."""


def parse_text(where: str, text: bytes, must_be_json: bool = True) -> MetadataText:
    """A text as metadata: the values of its JSON, or the text itself."""
    values: Any = None
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads(text)
    if values is None and not must_be_json:
        return MetadataText(where, text.decode(errors="replace"), text=text)
    if not isinstance(values, dict) and must_be_json:
        return MetadataText(where, text.decode(errors="replace"), "is not a JSON object", text)
    if is_deep(values):
        return MetadataText(where, None, "is nested too deeply", text)
    return MetadataText(where, values, text=text)


def cut_in_pieces(columns: Columns, references: int) -> Iterator[Piece]:
    """The rows in pieces of about so many block references.

    >>> from kvtrace.trace.building import toy
    >>> [rows for rows, _ in cut_in_pieces(toy("0 1", "0 2", "3"), 4)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    start = 0
    while start < len(columns):
        full = int(np.searchsorted(columns.offsets, columns.offsets[start] + references, side="right")) - 1
        stop = max(full, start + 1)
        yield slice(start, stop), rows_of(columns, start, stop)
        start = stop


def ids_alone(columns: Columns) -> Columns:
    """A copy of the ids and offsets of some rows, without their other columns; readers reuse their arrays."""
    copied = replace_columns(columns, session=None, parent=None, domain=None, extra={}, dependencies=None)
    for name, values in vars(copied).items():
        if isinstance(values, np.ndarray):
            setattr(copied, name, values.copy() if "ids" in name or "offsets" in name else values[:0])
    return copied
