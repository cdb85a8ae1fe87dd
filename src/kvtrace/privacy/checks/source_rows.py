"""The audited file, if it has rows of JSON."""

from __future__ import annotations

from ..._base.errors import RowError
from ..._base.files import is_regular, name_of
from ..._base.input_files import open_read
from ...formats import format_table, jsonl_read
from .source import CACHED, KNOWN, IdPiece, PieceCache, ReleaseSource, Take


def read_rows(path, stream, format, see: Take) -> ReleaseSource:
    """Read the rows of a stream."""
    unread: list[RowError] = []
    cache = PieceCache(see, max_references=CACHED if is_regular(path) else None)
    rows = jsonl_read.read_rows(stream, name_of(path), on_error=unread.append, take=_with_rows(cache.add))
    reader = format_table.FORMATS[format or format_table.format_of(rows.others)]
    read_result = reader.result_of(rows, name_of(path), unread.append)
    fields = {name: getattr(rows, name) for name in KNOWN} | rows.others

    def again(take):
        with open_read(path) as stream:
            jsonl_read.each_piece(stream, name_of(path), _with_rows(take))

    return ReleaseSource(read_result, fields, unread, cache.feed or again)


def _with_rows(take: Take):
    """A consumer of ids that passes them on with the number of their first row."""
    row = 0

    def numbered(hash_ids, offsets, output_ids, output_offsets):
        nonlocal row
        take(IdPiece(row, hash_ids, offsets, output_ids, output_offsets))
        row += len(offsets) - 1

    return numbered
