"""A trace as one Parquet table: columns under their own names, lists of ids, extra columns in a struct.

Ids are delta-encoded, because most ids in a prompt are consecutive. The schema's metadata contains the sidecar.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .._base.errors import InputError, KvtraceError, UsageError
from .._base.files import name_of
from .._base.input_files import size_of
from .._base.offsets import offsets_of
from ..trace.columns import Columns
from . import scalars, sidecar
from .read_result import ReadResult

MAGIC = b"PAR1"
KEY = b"kvtrace"  # of the schema's metadata
REFERENCES = 1 << 22  # approximate block references in a row group
NEEDED = ("timestamp", "input_length", "output_length", "hash_ids")
OTHERS = ("session", "parent", "output_hash_ids", "extra")


def read(stream, path: str | Path, *, extra: str = "keep") -> ReadResult:
    """Read a Parquet file; `stream` is at its beginning. Needs pyarrow."""
    pa, name = _pyarrow(), name_of(path)
    fault = None
    try:
        # Parquet is read from its end: a compressed file or a pipe must be read whole
        file = io.BytesIO(stream.read()) if size_of(stream) is None else str(path)
        table = pa.parquet.ParquetFile(file).read()
        description = (table.schema.metadata or {}).get(KEY)
        columns = _columns(table, name, extra)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised outside the handler: Arrow's error may quote values and must not be its context
        raise InputError(f"{name}: cannot be read as Parquet ({fault}).")
    return ReadResult(columns, name, "parquet", sidecar=description and _sidecar(description, name))


def batches(path: str, rows: int, *, extra: str = "keep") -> Iterator[Columns]:
    """The rows of a Parquet trace, at most `rows` at a time; memory holds one row group and one batch."""
    pa = _pyarrow()
    fault, known = None, (*NEEDED, *OTHERS) if extra == "keep" else (*NEEDED, *OTHERS[:-1])
    try:
        with pa.parquet.ParquetFile(path) as file:
            present = [name for name in known if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=rows, columns=present, use_threads=False):
                yield _columns(pa.Table.from_batches([batch]), path, extra)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised outside the handler, as above
        raise InputError(f"{path}: cannot be read as Parquet ({fault}).")


def names(path: str) -> list[str]:
    """The columns of a Parquet trace, extra ones as `extra.name`; empty if it cannot be read."""
    pa = _pyarrow()
    with suppress(pa.ArrowException, OSError):
        schema = pa.parquet.read_schema(path)
        inside = [f"extra.{field.name}" for field in schema.field("extra").type] if "extra" in schema.names else []
        return [name for name in schema.names if name != "extra"] + inside
    return []


def forget() -> None:
    """Release the memory that pyarrow caches."""
    _pyarrow().default_memory_pool().release_unused()


def _sidecar(description, name):
    return sidecar.load(description, f"{name} (its metadata)", remedy="Write the file again.")


def write(stream, columns: Columns, *, first_id: int = 0, extra: bool = True, description=None) -> None:
    """Write all columns, whatever `extra` is, and the description in the schema's metadata."""
    pa = _pyarrow()
    arrays = _arrays(pa, columns, first_id)
    metadata = {KEY: sidecar.dump(description or {})}
    table = pa.table(arrays, metadata=metadata)
    lists = [name for name in ("hash_ids", "output_hash_ids") if name in arrays]
    plain = [name for name in arrays if name not in lists and name != "extra"]
    rows = max(1, len(columns) * REFERENCES // max(REFERENCES, len(columns.hash_ids)))
    try:
        pa.parquet.write_table(
            table, stream, row_group_size=rows, compression="zstd",
            use_dictionary=[f"extra.{name}" for name in columns.extra],
            column_encoding={f"{name}.list.element": "DELTA_BINARY_PACKED" for name in lists}
            | {name: "DELTA_BINARY_PACKED" for name in plain if name != "timestamp"},
        )  # fmt: skip
    except KvtraceError:
        raise  # from the stream, such as a full disk
    except pa.ArrowException as error:
        raise KvtraceError(f"the columns cannot be written as Parquet ({type(error).__name__}).") from None


def require() -> None:
    """UsageError if pyarrow is not installed."""
    _pyarrow()


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("Parquet needs pyarrow. Try `pip install 'kvtrace[parquet]'`.") from None
    return pyarrow


# -- columns to Arrow and back -----------------------------------------------------------------------------------


def _arrays(pa, columns, first_id) -> dict[str, Any]:
    arrays = {
        "timestamp": pa.array(columns.timestamp),
        "input_length": pa.array(columns.input_length),
        "output_length": pa.array(columns.output_length),
        "hash_ids": _list_array(pa, columns.hash_ids + first_id, columns.offsets),
    }
    for name in ("session", "parent"):
        if (values := getattr(columns, name)) is not None:
            arrays[name] = pa.array(values)
    if columns.output_ids is not None:
        arrays["output_hash_ids"] = _list_array(pa, columns.output_ids + first_id, columns.output_offsets)
    if columns.extra:
        extra = {name: _scalar_array(pa, values) for name, values in columns.extra.items()}
        fields = [
            pa.field(name, array.type, metadata={KEY: b"json"} if is_json else None)
            for name, (array, is_json) in extra.items()
        ]
        arrays["extra"] = pa.StructArray.from_arrays([array for array, _ in extra.values()], fields=fields)
    return arrays


def _list_array(pa, ids, offsets):
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))


def _scalar_array(pa, values):
    """An Arrow array of a column, and whether its values are of several types and therefore written as JSON."""
    if values.dtype != object:
        return pa.array(values), False
    kinds = {type(value) for value in values.tolist()} - {type(None)}
    if kinds <= {str}:
        return pa.array(values.tolist(), type=pa.string()), False
    texts = [orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode() for value in values.tolist()]
    return pa.array(texts, type=pa.string()), True


def _columns(table, name, extra) -> Columns:
    missing = [key for key in NEEDED if key not in table.column_names]
    if missing:
        raise InputError(f"{name}: the column {missing[0]} is missing.")
    if twice := [key for key in (*NEEDED, *OTHERS) if table.column_names.count(key) > 1]:
        raise InputError(f"{name}: the column {twice[0]} appears twice.")
    numbers = {key: _numbers(table, key, name) for key in ("input_length", "output_length")}
    timestamp = _numbers(table, "timestamp", name)
    hash_ids, offsets = _lists(table, "hash_ids", name)
    has_outputs = "output_hash_ids" in table.column_names
    output_ids, output_offsets = _lists(table, "output_hash_ids", name) if has_outputs else (None, None)
    links = {key: _numbers(table, key, name) for key in ("session", "parent") if key in table.column_names}
    more = _extra(table, name) if "extra" in table.column_names and extra == "keep" else {}
    return Columns(
        timestamp, numbers["input_length"], numbers["output_length"], hash_ids, offsets,
        session=links.get("session"), parent=links.get("parent"), extra=more,
        output_ids=output_ids, output_offsets=output_offsets,
    )  # fmt: skip


def _numbers(table, key, name) -> np.ndarray:
    values = table.column(key).to_numpy()
    if values.dtype.kind not in "iuf" or table.column(key).null_count:
        raise InputError(f"{name}: the column {key} does not have a number in every row.")
    if key != "timestamp" and values.dtype.kind == "f":
        if not (np.abs(values) <= 2**53).all():  # NaN is not
            raise InputError(f"{name}: the column {key} has a number that is not a 64-bit integer.")
        if not (values == np.floor(values)).all():
            raise InputError(f"{name}: the column {key} has a fraction.")
    return values


def _lists(table, key, name) -> tuple[np.ndarray, np.ndarray]:
    pa = _pyarrow()
    column = table.column(key)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) or column.null_count:
        raise InputError(f"{name}: the column {key} does not have a list in every row.")
    chunks = column.chunks
    ids = [chunk.flatten() for chunk in chunks]
    if not pa.types.is_integer(column.type.value_type) or any(chunk.null_count for chunk in ids):
        raise InputError(f"{name}: the column {key} does not have lists of integers.")
    blocks = np.concatenate([chunk.value_lengths().to_numpy() for chunk in chunks] or [np.empty(0, np.int64)])
    arrays = [chunk.to_numpy() for chunk in ids]
    return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays or [np.empty(0, np.int64)])), offsets_of(blocks)


def _extra(table, name) -> dict[str, np.ndarray]:
    if not _pyarrow().types.is_struct(table.column("extra").type):
        raise InputError(f"{name}: the column extra is not a struct of columns.")
    struct = table.column("extra").combine_chunks()
    columns = {}
    for place, field in enumerate(struct.type):
        values = struct.field(place)
        if (field.metadata or {}).get(KEY) == b"json":
            columns[field.name] = _from_json(values.to_pylist(), name)
        elif values.type == _pyarrow().string():
            columns[field.name] = np.array(values.to_pylist(), dtype=object)
        else:
            columns[field.name] = values.to_numpy(zero_copy_only=False)
    return {field: scalars.narrow(values) if values.dtype == object else values for field, values in columns.items()}


def _from_json(texts, name) -> np.ndarray:
    values = []
    with suppress(orjson.JSONDecodeError):
        values = [None if text is None else orjson.loads(text) for text in texts]
    if len(values) < len(
        texts
    ):  # raised outside the handler: orjson's error contains the text and must not be its context
        raise InputError(f"{name}: the column extra has text that is not valid JSON.")
    return np.fromiter(values, dtype=object, count=len(values))
