"""What is audited: the columns over its requests, read once, and its block ids, given again as often as asked.

Of a small file the ids are kept. Those of a larger one, or of a folder of parts, are read anew each time, so that
memory holds a piece of them and no more; only what can't be read twice, stdin say, is kept whatever its size.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..._base.errors import InputError, RowError
from ..._base.files import is_regular, name_of, open_read
from ...formats import dataset as parts
from ...formats import parquet
from ...formats import trace_files as formats
from ...formats.jsonl_read import each_piece, read_rows
from ...formats.read_result import Found
from ...trace.building import TraceBuilder
from ...trace.columns import Columns, replace_columns

KNOWN = ("timestamp", "input_length", "output_length")
HELD = 1 << 20  # block references of a file that are kept
REFERENCES = 1 << 18  # of a piece, about: few enough that what is made of them stays small
ROWS = 1 << 12  # of a Parquet file that are read at a time
PART = ("file", "requests", "blocks")  # what a manifest must say of a part


@dataclass
class Said:
    """What a sidecar says, as it stands; `fault` is why it can't be taken, in words."""

    where: str
    values: Any = None
    fault: str | None = None


@dataclass
class Piece:
    """The block ids of some rows that follow each other, the first of which is `row`."""

    row: int
    hash_ids: np.ndarray
    offsets: np.ndarray
    output_ids: np.ndarray | None = None
    output_offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def copy(self) -> Piece:
        """The same in arrays of its own, where those given are used again."""
        piece = Piece(self.row, self.hash_ids.copy(), self.offsets.copy())
        if self.output_ids is not None and self.output_offsets is not None:
            piece.output_ids, piece.output_offsets = self.output_ids.copy(), self.output_offsets.copy()
        return piece


Take = Callable[[Piece], None]


@dataclass(eq=False)
class Source:
    """A file or a folder as it stands."""

    found: Found  # its columns hold no block ids, but say by their offsets how many there are
    fields: dict[str, np.ndarray]  # field -> its scalars as they stand, None where a row has none; not the ids
    unread: list[RowError]  # rows that could not be read
    each: Callable[[Take], None]  # gives the ids of all rows, piece by piece
    texts: list[Said] = field(default_factory=list)  # sidecars that are in it, and other metadata
    strangers: int = 0  # files in the folder that are not of the trace


def read(path, format: str | None, see: Take) -> Source:
    """What stands in a file or a folder of parts; `see` is given the block ids already while it is read."""
    if is_dataset(path, format):
        return _read_parts(path, see)
    with open_read(path) as stream:
        if format == "parquet" or (format is None and stream.peek(4)[:4] == parquet.MAGIC):
            return _read_parquet(path, stream, see)
        return _read_rows(path, stream, format, see)


def is_dataset(path, format: str | None = None) -> bool:
    """Whether what is audited is a folder of parts, or should be one."""
    named = os.path.isdir(path) and (parts.is_dataset(path) or parts.has_dataset_name(path))
    return format == "dataset" or (format is None and named)


def said(where: str, text: bytes, must_be_json: bool = True) -> Said:
    """What a text says: the values of its JSON, or the text itself."""
    values: Any = None
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads(text)
    if values is None and not must_be_json:
        return Said(where, text.decode(errors="replace"))
    if not isinstance(values, dict) and must_be_json:
        return Said(where, text.decode(errors="replace"), "is not a JSON object")
    return Said(where, values)


# -- rows of JSON ------------------------------------------------------------------------------------------------


def _read_rows(path, stream, format, see) -> Source:
    unread: list[RowError] = []
    kept = _Kept(see, at_most=HELD if is_regular(path) else None)
    rows = read_rows(stream, name_of(path), on_error=unread.append, take=_in_turn(kept.add))
    reader = formats.FORMATS[format or formats.told_by(rows.others)]
    found = reader.found(rows, name_of(path), unread.append)
    fields = {name: getattr(rows, name) for name in KNOWN} | rows.others

    def again(take):
        with open_read(path) as stream:
            each_piece(stream, name_of(path), _in_turn(take))

    return Source(found, fields, unread, kept.each or again)


def _in_turn(take: Take):
    """Takes the ids of rows, and says which rows they are."""
    row = 0

    def numbered(hash_ids, offsets, output_ids, output_offsets):
        nonlocal row
        take(Piece(row, hash_ids, offsets, output_ids, output_offsets))
        row += len(offsets) - 1

    return numbered


class _Kept:
    """Hands pieces on, and keeps them while all of them are few."""

    def __init__(self, see: Take, at_most: int | None):
        self._see, self._at_most, self._references = see, at_most, 0
        self._pieces: list[Piece] | None = []

    def add(self, piece: Piece) -> None:
        self._references += len(piece.hash_ids) + (0 if piece.output_ids is None else len(piece.output_ids))
        if self._at_most is not None and self._references > self._at_most:
            self._pieces = None
        if self._pieces is not None:
            self._pieces.append(piece.copy())
        self._see(piece)

    @property
    def each(self) -> Callable[[Take], None] | None:
        """Gives all pieces again; None where they were too many."""
        pieces = self._pieces
        if pieces is None:
            return None

        def again(take):
            for piece in pieces:
                take(piece)

        return again


# -- Parquet, in one file or in parts ----------------------------------------------------------------------------


def _read_parts(path, see) -> Source:
    """The columns of all parts; the manifest is the sidecar."""
    opened = parts.open_dataset(path)
    source = _of_columns(lambda extra: opened.chunks(REFERENCES, extra=extra), opened.path, see, HELD)
    manifest = said("the sidecar", Path(path, parts.MANIFEST).read_bytes())
    listed = [part["file"] for part in manifest.values["parts"]]
    _add_others(source, [os.path.join(path, file) for file in listed])
    more = [{key: value for key, value in part.items() if key not in PART} for part in manifest.values.pop("parts")]
    if any(more):
        manifest.values["parts"] = more
    source.texts.insert(0, manifest)
    source.strangers = len({*os.listdir(path)} - {parts.MANIFEST, parts.CARD, *listed})
    return source


def _read_parquet(path, stream, see) -> Source:
    """The columns that a Trace takes, and then any others that stand in the file."""
    if not _can_be_read_again(path):
        packed = stream.read()
        whole = parquet.read(io.BytesIO(packed), path).columns
        source = _of_columns(lambda extra: _cut(whole), name_of(path), see, None)
        _add_others(source, [io.BytesIO(packed)])
        return source
    source = _of_columns(lambda extra: parquet.batches(str(path), ROWS, extra=extra), name_of(path), see, HELD)
    _add_others(source, [str(path)])
    return source


def _can_be_read_again(path) -> bool:
    """Whether it is a Parquet file as it stands, neither packed nor a pipe."""
    if not is_regular(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(parquet.MAGIC)) == parquet.MAGIC


def _of_columns(columns_of: Callable[[str], Iterator[Columns]], name: str, see: Take, held: int | None) -> Source:
    whole, kept, same = TraceBuilder(), _Kept(see, held), _Same()
    row = 0
    for columns in columns_of("keep"):
        kept.add(_piece(columns, row))
        row += len(columns)
        whole.add(replace_columns(columns, hash_ids=[], output_ids=None if columns.output_ids is None else [],
                                  extra={name: same.of(values) for name, values in columns.extra.items()}))  # fmt: skip
    columns = whole.columns()
    fields = {name: getattr(columns, name) for name in KNOWN} | columns.extra
    fields |= {name: value for name in ("session", "parent") if (value := getattr(columns, name)) is not None}

    def again(take):
        row = 0
        for columns in columns_of("ignore"):
            take(_piece(columns, row))
            row += len(columns)

    return Source(Found(columns, name, "parquet"), fields, [], kept.each or again)


def _piece(columns, row) -> Piece:
    return Piece(row, columns.hash_ids, columns.offsets, columns.output_ids, columns.output_offsets)


def _cut(columns: Columns) -> Iterator[Columns]:
    """The rows in pieces of about REFERENCES."""
    start = 0
    while start < len(columns):
        full = int(np.searchsorted(columns.offsets, columns.offsets[start] + REFERENCES, side="right")) - 1
        stop = max(full, start + 1)
        yield parts.rows_of(columns, start, stop)
        start = stop


class _Same:
    """One object a distinct text."""

    def __init__(self):
        self._texts: dict[str, str] = {}

    def of(self, values: np.ndarray) -> np.ndarray:
        if values.dtype == object:
            for row, value in enumerate(values):
                if type(value) is str:
                    values[row] = self._texts.setdefault(value, value)
        return values


def _add_others(source: Source, files: list) -> None:
    """The columns of Parquet files that a trace does not read, and the metadata of their schemas."""
    import pyarrow as pa

    fault = None
    try:
        _add_read(source, files)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised out here, so that Arrow's error, which may quote values, does not hang on ours
        raise InputError(f"{source.found.path}: cannot be read as Parquet ({fault}).")


def _add_read(source: Source, files: list) -> None:
    import pyarrow.parquet as pq

    columns: dict[str, list[np.ndarray]] = {}
    metadata: dict[tuple[bytes, bytes], None] = {}
    rows = 0
    for file in files:
        with pq.ParquetFile(file) as whole:
            schema, count = whole.schema_arrow, whole.metadata.num_rows
            metadata |= dict.fromkeys((schema.metadata or {}).items())
            for name in sorted(set(schema.names) - {*parquet.NEEDED, *parquet.OTHERS}):
                values = _other(whole, name, source)
                if values is not None:
                    missing = rows - sum(map(len, columns.get(name, [])))
                    columns.setdefault(name, []).extend([*([np.full(missing, None)] if missing else []), values])
        rows += count
    for name, some in columns.items():
        missing = rows - sum(map(len, some))
        source.fields[name] = np.concatenate([*some, *([np.full(missing, None)] if missing else [])])
    texts = [said(f"metadata {key.decode(errors='replace')}"[:40], text, must_be_json=key == parquet.KEY)
             for key, text in metadata if key != b"ARROW:schema"]  # fmt: skip
    source.texts += sorted(texts, key=lambda said: said.where != "metadata kvtrace")


def _other(file, name, source) -> np.ndarray | None:
    """A column of scalars; None where it holds lists or the like, which are counted."""
    import pyarrow as pa

    values = file.read(columns=[name]).column(name)
    if pa.types.is_nested(values.type):
        source.found.nested[name] = source.found.nested.get(name, 0) + len(values) - values.null_count
        return None
    if values.null_count == 0 and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values.to_numpy()
    return np.array([_plain(value) for value in values.to_pylist()], dtype=object)


def _plain(value):
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
