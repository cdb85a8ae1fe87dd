"""The audited file or data set, if it is Parquet."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import InputError
from ..._base.files import name_of
from ..._base.input_files import size_of
from ...formats import dataset as datasets
from ...formats import parquet
from ...formats.read_result import ReadResult
from ...trace.building import TraceBuilder
from ...trace.columns import Columns, replace_columns
from .source import CACHED, KNOWN, IdPiece, PieceCache, ReleaseSource, Take, parse_text

REFERENCES = 1 << 18  # approximate block references in a piece, to bound what checks derive from it
ROWS = 1 << 12  # rows of a Parquet file read at a time
PART = ("file", "requests", "blocks")  # required keys of a part in a manifest


def read_dataset(path, see: Take) -> ReleaseSource:
    """Read the columns of all parts; the manifest is the sidecar."""
    dataset = datasets.open_dataset(path)
    source = _from_columns(lambda extra: dataset.chunks(REFERENCES, extra=extra), dataset.path, see, CACHED)
    manifest = parse_text("the sidecar", Path(path, datasets.MANIFEST).read_bytes())
    files = [part["file"] for part in manifest.values["parts"]]
    _add_other_content(source, [os.path.join(path, file) for file in files])
    extras = [{key: value for key, value in part.items() if key not in PART} for part in manifest.values.pop("parts")]
    if any(extras):
        manifest.values["parts"] = extras
    source.texts.insert(0, manifest)
    source.unknown_files = len({*os.listdir(path)} - {datasets.MANIFEST, datasets.CARD, *files})
    return source


def read_parquet(path, stream, see: Take) -> ReleaseSource:
    """Read the columns of a trace, then any other columns of the file."""
    if size_of(stream) is None:  # compressed or a pipe: it cannot be read again
        packed = stream.read()
        whole = parquet.read(io.BytesIO(packed), path).columns
        source = _from_columns(lambda extra: _chunks(whole), name_of(path), see, None)
        _add_other_content(source, [io.BytesIO(packed)])
        return source
    source = _from_columns(lambda extra: parquet.batches(str(path), ROWS, extra=extra), name_of(path), see, CACHED)
    _add_other_content(source, [str(path)])
    return source


def _from_columns(
    columns_of: Callable[[str], Iterator[Columns]], name: str, see: Take, max_references: int | None
) -> ReleaseSource:
    whole, cache, strings = TraceBuilder(), PieceCache(see, max_references), _StringPool()
    row = 0
    for columns in columns_of("keep"):
        cache.add(_piece(columns, row))
        row += len(columns)
        extra = {name: strings.pool(values) for name, values in columns.extra.items()}
        no_outputs: Any = None if columns.output_ids is None else []
        whole.add(replace_columns(columns, hash_ids=[], output_ids=no_outputs, extra=extra))
    columns = whole.columns()
    fields = {name: getattr(columns, name) for name in KNOWN} | columns.extra
    fields |= {name: value for name in ("session", "parent") if (value := getattr(columns, name)) is not None}

    def again(take):
        row = 0
        for columns in columns_of("ignore"):
            take(_piece(columns, row))
            row += len(columns)

    return ReleaseSource(ReadResult(columns, name, "parquet"), fields, [], cache.feed or again)


def _piece(columns, row) -> IdPiece:
    return IdPiece(row, columns.hash_ids, columns.offsets, columns.output_ids, columns.output_offsets)


def _chunks(columns: Columns) -> Iterator[Columns]:
    """The rows in chunks of about REFERENCES block references."""
    start = 0
    while start < len(columns):
        full = int(np.searchsorted(columns.offsets, columns.offsets[start] + REFERENCES, side="right")) - 1
        stop = max(full, start + 1)
        yield datasets.rows_of(columns, start, stop)
        start = stop


class _StringPool:
    """Replaces equal strings by one object."""

    def __init__(self):
        self._texts: dict[str, str] = {}

    def pool(self, values: np.ndarray) -> np.ndarray:
        if values.dtype == object:
            for row, value in enumerate(values):
                if type(value) is str:
                    values[row] = self._texts.setdefault(value, value)
        return values


def _add_other_content(source: ReleaseSource, files: list) -> None:
    """Add the columns of Parquet files that a Trace does not read, and the metadata of their schemas."""
    import pyarrow as pa

    fault = None
    try:
        _add_columns_and_metadata(source, files)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised outside the handler: Arrow's error may quote values and must not be its context
        raise InputError(f"{source.read_result.path}: cannot be read as Parquet ({fault}).")


def _add_columns_and_metadata(source: ReleaseSource, files: list) -> None:
    import pyarrow.parquet as pq

    columns: dict[str, list[np.ndarray]] = {}
    metadata: dict[tuple[bytes, bytes], None] = {}
    rows = 0
    for file in files:
        with pq.ParquetFile(file) as whole:
            schema, count = whole.schema_arrow, whole.metadata.num_rows
            metadata |= dict.fromkeys((schema.metadata or {}).items())
            for name in sorted(set(schema.names) - {*parquet.NEEDED, *parquet.OTHERS}):
                values = _scalars(whole, name, source)
                if values is not None:
                    missing = rows - sum(map(len, columns.get(name, [])))
                    columns.setdefault(name, []).extend([*([np.full(missing, None)] if missing else []), values])
        rows += count
    for name, arrays in columns.items():
        missing = rows - sum(map(len, arrays))
        source.fields[name] = np.concatenate([*arrays, *([np.full(missing, None)] if missing else [])])
    texts = [parse_text(f"metadata {key.decode(errors='replace')}"[:40], text, must_be_json=key == parquet.KEY)
             for key, text in metadata if key != b"ARROW:schema"]  # fmt: skip
    source.texts += sorted(texts, key=lambda text: text.where != "metadata kvtrace")


def _scalars(file, name, source) -> np.ndarray | None:
    """A column of scalars; None for a column of lists or objects, whose values are counted."""
    import pyarrow as pa

    values = file.read(columns=[name]).column(name)
    if pa.types.is_nested(values.type):
        nested = source.read_result.nested
        nested[name] = nested.get(name, 0) + len(values) - values.null_count
        return None
    if values.null_count == 0 and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values.to_numpy()
    return np.array([_plain(value) for value in values.to_pylist()], dtype=object)


def _plain(value):
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
