"""The audited file or data set: its columns, read once, and its block ids, which can be read again.

The ids of a small file stay in memory. Those of a larger file or of a data set are read again for each pass, so that
memory holds only a piece of them. A stream that cannot be read twice, such as stdin, stays in memory at any size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from ..._base.errors import RowError
from ...formats.read_result import ReadResult
from ...formats.sidecar import is_deep

KNOWN = ("timestamp", "input_length", "output_length")
CACHED = 1 << 20  # maximum block references of a file that stay in memory


@dataclass
class MetadataText:
    """A sidecar or another piece of metadata; `fault` says why it is not valid."""

    where: str
    values: Any = None
    fault: str | None = None


@dataclass
class IdPiece:
    """The block ids of some consecutive rows, the first of which is `row`."""

    row: int
    hash_ids: np.ndarray
    offsets: np.ndarray
    output_ids: np.ndarray | None = None
    output_offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def copy(self) -> IdPiece:
        """A copy with its own arrays: readers reuse theirs."""
        piece = IdPiece(self.row, self.hash_ids.copy(), self.offsets.copy())
        if self.output_ids is not None and self.output_offsets is not None:
            piece.output_ids, piece.output_offsets = self.output_ids.copy(), self.output_offsets.copy()
        return piece


Take = Callable[[IdPiece], None]


@dataclass(eq=False)
class ReleaseSource:
    """The content of a file or a data set."""

    read_result: ReadResult  # its columns have offsets but no block ids
    fields: dict[str, np.ndarray]  # field -> scalar values, None where a row has none; without the ids
    unread: list[RowError]  # rows that could not be read
    feed: Callable[[Take], None]  # passes the ids of all rows on, piece by piece
    texts: list[MetadataText] = field(default_factory=list)  # sidecars and other metadata inside it
    unknown_files: int = 0  # files in the data set's folder that do not belong to it


def parse_text(where: str, text: bytes, must_be_json: bool = True) -> MetadataText:
    """A text as metadata: the values of its JSON, or the text itself."""
    values: Any = None
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads(text)
    if values is None and not must_be_json:
        return MetadataText(where, text.decode(errors="replace"))
    if not isinstance(values, dict) and must_be_json:
        return MetadataText(where, text.decode(errors="replace"), "is not a JSON object")
    if is_deep(values):
        return MetadataText(where, None, "is nested too deeply")
    return MetadataText(where, values)


class PieceCache:
    """Passes pieces on, and stores them while their total stays within `max_references` (None = any number)."""

    def __init__(self, see: Take, max_references: int | None):
        self._see, self._max_references, self._references = see, max_references, 0
        self._pieces: list[IdPiece] | None = []

    def add(self, piece: IdPiece) -> None:
        """Store a piece if it fits, and pass it on."""
        self._references += len(piece.hash_ids) + (0 if piece.output_ids is None else len(piece.output_ids))
        if self._max_references is not None and self._references > self._max_references:
            self._pieces = None
        if self._pieces is not None:
            self._pieces.append(piece.copy())
        self._see(piece)

    @property
    def feed(self) -> Callable[[Take], None] | None:
        """Passes all pieces on again; None if they were too many to store."""
        pieces = self._pieces
        if pieces is None:
            return None

        def again(take):
            for piece in pieces:
                take(piece)

        return again
