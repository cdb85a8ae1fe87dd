"""An open trace file with rows of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from .._base.errors import InputError
from .._base.files import is_regular
from .._base.input_files import open_read
from ..trace.columns import Columns
from . import format_table
from .jsonl_read import RowReader, each_piece
from .opened import KNOWN, OpenTrace, Piece


class OpenRows(OpenTrace):
    """A file of JSON Lines, compressed or not, or a pipe."""

    def __init__(self, path, stream: BufferedReader, format: str | None, threads: int | None):
        super().__init__(path, repeats=is_regular(path))
        self._stream, self._format, self._threads = stream, format, threads

    def _read(self) -> Iterator[Piece]:
        with self._stream as stream:
            reader = RowReader(stream, self.name, on_error=self.unread.append, threads=self._threads, ids=False)
            for piece in _numbered(reader.pieces()):
                self.growth = reader.growth
                yield piece
        rows = reader.rows()
        if rows.lengths_only:
            raise InputError(
                f"{self.name}: no row has hash_ids, so there is no release to audit. To make one: "
                f"kvtrace anonymize {self.name} -o TRACE"
            )
        format = format_table.FORMATS[self._format or format_table.format_of(rows.others)]
        self.result = format.result_of(rows, self.name, self.unread.append)
        self.fields = {name: getattr(rows, name) for name in KNOWN} | rows.others

    def _again(self) -> Iterator[Piece]:
        with open_read(self.path) as stream:
            yield from _numbered(each_piece(stream, self.name, threads=self._threads))


def _numbered(pieces) -> Iterator[Piece]:
    """Scanned pieces with the numbers of their rows."""
    start = 0
    for scanner in pieces:
        stop = start + scanner.rows
        outputs = (scanner.output_ids, scanner.output_offsets) if scanner.any_outputs else (None, None)
        yield slice(start, stop), Columns(
            scanner.timestamp, scanner.input_length, scanner.output_length, scanner.hash_ids, scanner.offsets,
            output_ids=outputs[0], output_offsets=outputs[1],
        )  # fmt: skip
        start = stop
