"""A trace as one Parquet table: columns under their own names, lists of ids, extra columns in a struct.

Dependencies are a list of structs (row, trigger, relation, delay_ms); an unknown measured number is null. Ids are
delta-encoded, because most ids in a prompt are consecutive. The schema's metadata contains the sidecar.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .._base.arrays import offsets_of
from .._base.errors import InputError, KvtraceError, UsageError
from .._base.files import name_of
from .._base.input_files import size_of
from .._base.step_work import report_work
from ..trace.columns import NUMBERS, Columns, numbers_of, replace_columns, rows_of
from ..trace.frames import dependencies_of, dependency_lists, known_lengths, known_numbers, numbers_in
from ..trace.unknown import NEGATIVE, UNKNOWN_LENGTH
from . import scalars, sidecar
from .sidecar import ReadResult

MAGIC = b"PAR1"
KEY = b"kvtrace"  # of the schema's metadata
REFERENCES = 1 << 22  # approximate block references in a row group
MANY_VALUES = 1 << 27  # a gigabyte of ids
MAX_EXPANSION = 2000  # bytes in memory per byte of the file; conversations expand about 30 times
NEEDED = ("timestamp", "input_length")
LINKS = ("session", "parent", "domain")
OTHERS = ("output_length", "hash_ids", *LINKS, "output_hash_ids", "dependencies", *NUMBERS, "extra")
DEPENDENCY = "dependencies.list.element"  # a path inside a file


def read(stream, path: str | Path, *, extra: str = "keep") -> ReadResult:
    """Read a Parquet file; `stream` is at its beginning. Needs pyarrow."""
    pa, name = _pyarrow(), name_of(path)
    fault = None
    try:
        # Parquet is read from its end: a compressed file or a pipe must be read whole
        file = io.BytesIO(stream.read()) if size_of(stream) is None else str(path)
        opened = pa.parquet.ParquetFile(file)
        size = file.getbuffer().nbytes if isinstance(file, io.BytesIO) else os.stat(file).st_size
        _require_bounded(opened.metadata, size, name)
        table = opened.read()
        description = (table.schema.metadata or {}).get(KEY)
        columns = _columns(table, name, extra)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised outside the handler: Arrow's error may quote values and must not be its context
        raise InputError(f"{name}: cannot be read as Parquet ({fault}).")
    return ReadResult(
        columns, name, "parquet", sidecar=description and _sidecar(description, name),
        lengths_only="hash_ids" not in table.column_names,
    )  # fmt: skip


def batches(path: str, rows: int, *, extra: str = "keep") -> Iterator[Columns]:
    """The rows of a Parquet trace, at most `rows` at a time; memory holds one row group and one batch."""
    pa = _pyarrow()
    fault, names = None, (*NEEDED, *OTHERS) if extra == "keep" else (*NEEDED, *OTHERS[:-1])
    try:
        with pa.parquet.ParquetFile(path) as file:
            _require_bounded(file.metadata, os.stat(path).st_size, path)
            present = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=rows, columns=present, use_threads=False):
                yield _columns(pa.Table.from_batches([batch]), path, extra)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised outside the handler, as above
        raise InputError(f"{path}: cannot be read as Parquet ({fault}).")


def tables(path: str, rows: int) -> Iterator[Any]:
    """The rows of any Parquet file as tables of at most so many; times in microseconds, as Python has them."""
    pa = _pyarrow()
    fault = None
    try:
        with pa.parquet.ParquetFile(path) as file:
            _require_bounded(file.metadata, os.stat(path).st_size, path)
            fields = [
                field.with_type(pa.timestamp("us", field.type.tz)) if pa.types.is_timestamp(field.type) else field
                for field in file.schema_arrow
            ]
            for batch in file.iter_batches(batch_size=rows, use_threads=False):
                yield pa.Table.from_batches([batch]).cast(pa.schema(fields), safe=False)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised outside the handler, as above
        raise InputError(f"{path}: cannot be read as Parquet ({fault}).")


def is_log(path: str | Path) -> bool:
    """Whether a Parquet file can be read, and has neither lengths nor blocks of prompts: then it holds the prompts."""
    columns = names(str(path))
    return bool(columns) and not {"input_length", "hash_ids"} & {*columns}


def ids_of(table) -> Columns:
    """The ids of some rows of a Parquet trace, without the other columns."""
    hash_ids, offsets = _lists(table, "hash_ids", "")
    outputs = _lists(table, "output_hash_ids", "") if "output_hash_ids" in table.column_names else (None, None)
    nothing = np.empty(0, dtype=np.int64)
    return Columns(nothing, nothing, nothing, hash_ids, offsets, output_ids=outputs[0], output_offsets=outputs[1])


def description_of(schema) -> dict[str, Any]:
    """The description in the metadata of a schema; empty if there is none, or it is not an object."""
    values = None
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads((schema.metadata or {}).get(KEY, b"{}"))
    return values if isinstance(values, dict) else {}


def names(path: str) -> list[str]:
    """The columns of a Parquet trace, extra ones as `extra.name`; empty if it cannot be read."""
    pa = _pyarrow()
    with suppress(pa.ArrowException, OSError):
        schema = pa.parquet.read_schema(path)
        extra = schema.field("extra").type if "extra" in schema.names else pa.struct([])
        inside = [f"extra.{field.name}" for field in extra] if pa.types.is_struct(extra) else []
        return [name for name in schema.names if name != "extra"] + inside
    return []


def count_dependencies(file: str) -> int:
    """The dependencies in a Parquet trace and its requests without any, from its footer; 0 if it cannot be read."""
    pa = _pyarrow()
    with suppress(pa.ArrowException, OSError):
        metadata = pa.parquet.read_metadata(file)
        paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
        places = [place for place, path in enumerate(paths) if path == f"{DEPENDENCY}.row"]
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return sum(group.column(place).num_values for group in groups for place in places)
    return 0


def forget() -> None:
    """Release the memory that pyarrow caches."""
    _pyarrow().default_memory_pool().release_unused()


def _require_bounded(metadata, size: int, name: str) -> None:
    """InputError if a small file would fill the memory: a run of equal ids takes no bytes, however long it is."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
    if values > MANY_VALUES and 8 * values > MAX_EXPANSION * size:
        raise InputError(f"{name}: {size:,} bytes that hold {values:,} values. Such a file is not a trace.")


def _sidecar(description, name):
    return sidecar.load(description, f"{name} (its metadata)", part="metadata", remedy="Write the file again.")


def write(stream, columns: Columns, *, first_id: int = 0, extra: bool = True, description=None) -> None:
    """Write all columns, for any value of `extra`, and the description in the schema's metadata."""
    with RowGroups(stream, columns, blocks=len(columns.hash_ids), description=description) as groups:
        for rows in groups.rows:
            part = rows_of(columns, rows.start, rows.stop)
            output_ids = None if part.output_ids is None else part.output_ids + first_id
            groups.write(rows, replace_columns(part, hash_ids=part.hash_ids + first_id, output_ids=output_ids))


class RowGroups:
    """Writes a trace as Parquet, one row group at a time; equal columns give equal bytes.

    `columns` are all rows, with or without ids: `write` takes those of each group. `rows` are the groups.

    >>> from kvtrace.trace.building import toy
    >>> trace, stream = toy("0 1", "0 2"), io.BytesIO()
    >>> with RowGroups(stream, trace, blocks=4) as groups:
    ...     groups.write(groups.rows[0], trace)
    >>> groups.rows, read(io.BytesIO(stream.getvalue()), "t.parquet").columns.hash_ids
    ([slice(0, 2, None)], array([0, 1, 0, 2]))
    """

    def __init__(self, stream, columns: Columns, *, blocks: int, description=None):
        self._pa, self._columns, self._stream = _pyarrow(), columns, stream
        count = max(1, len(columns) * REFERENCES // max(REFERENCES, blocks))
        self.rows = [slice(start, min(len(columns), start + count)) for start in range(0, max(1, len(columns)), count)]
        self._extra = {name: _plain_column(values) for name, values in columns.extra.items()}
        self._are_json = {name: _are_json(values) for name, values in self._extra.items()}
        self._metadata = {KEY: sidecar.dump(description or {})}
        self._writer: Any = None

    def __enter__(self) -> RowGroups:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self._writer is not None:
            with self._named_errors():
                self._writer.close()

    def write(self, rows: slice, ids: Columns) -> None:
        """Write a row group: some of the rows, and their ids."""
        with self._named_errors():
            arrays = self._arrays(rows, ids)
            table = self._pa.table(arrays, metadata=self._metadata)
            if self._writer is None:
                self._open(arrays, table.schema)
            self._writer.write_table(table, row_group_size=max(1, len(table)))
        report_work(rows.stop - rows.start)

    def _open(self, arrays, schema) -> None:
        lists = [name for name in ("hash_ids", "output_hash_ids") if name in arrays]
        plain = [name for name in arrays if name in ("input_length", "output_length", *LINKS)]
        if "dependencies" in arrays:
            plain.append(f"{DEPENDENCY}.row")
        repeated = [f"extra.{name}" for name in self._extra]
        repeated += [f"{DEPENDENCY}.{name}" for name in ("trigger", "relation", "delay_ms")]
        self._writer = self._pa.parquet.ParquetWriter(
            self._stream, schema, compression="zstd", use_dictionary=repeated,
            column_encoding={f"{name}.list.element": "DELTA_BINARY_PACKED" for name in lists}
            | {name: "DELTA_BINARY_PACKED" for name in plain},
        )  # fmt: skip

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except KvtraceError:
            raise  # from the stream, such as a full disk
        except self._pa.ArrowException as error:
            raise KvtraceError(f"the columns cannot be written as Parquet ({type(error).__name__}).") from None

    def _arrays(self, rows: slice, ids: Columns) -> dict[str, Any]:
        pa, columns = self._pa, self._columns
        arrays = {name: pa.array(getattr(columns, name)[rows]) for name in NEEDED}
        arrays["output_length"] = known_lengths(pa, columns.output_length[rows])
        arrays["hash_ids"] = _list_array(pa, ids.hash_ids, ids.offsets)
        for name in LINKS:
            if (values := getattr(columns, name)) is not None:
                arrays[name] = pa.array(values[rows])
        if columns.output_ids is not None:
            arrays["output_hash_ids"] = _list_array(pa, ids.output_ids, ids.output_offsets)
        if columns.dependencies is not None:
            arrays["dependencies"] = dependency_lists(pa, columns.dependencies.rows_of(rows.start, rows.stop))
        for name, values in numbers_of(columns).items():
            arrays[name] = known_numbers(pa, name, values[rows])
        if self._extra:
            extra = {
                name: _scalar_array(pa, self._extra[name][rows], is_json) for name, is_json in self._are_json.items()
            }
            fields = [
                pa.field(name, array.type, metadata={KEY: b"json"} if self._are_json[name] else None)
                for name, array in extra.items()
            ]
            arrays["extra"] = pa.StructArray.from_arrays(list(extra.values()), fields=fields)
        return arrays


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


def _list_array(pa, ids, offsets):
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))


def _plain_column(values: np.ndarray) -> np.ndarray:
    """The column as the simplest of int64, float64, bool and objects, so that its bytes depend on its values alone."""
    values = scalars.narrow(values) if values.dtype == object else values
    if values.dtype.kind in "iu" and values.dtype != np.int64 and not (values > np.iinfo(np.int64).max).any():
        return values.astype(np.int64)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _are_json(values: np.ndarray) -> bool:
    """Whether the values of a column are of several types, and therefore written as JSON."""
    return values.dtype == object and not {type(value) for value in values.tolist()} <= {str, type(None)}


def _scalar_array(pa, values: np.ndarray, is_json: bool):
    if values.dtype != object:
        return pa.array(values)
    if not is_json:
        return pa.array(values.tolist(), type=pa.string())
    texts = [orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode() for value in values.tolist()]
    return pa.array(texts, type=pa.string())


def _columns(table, name, extra) -> Columns:
    missing = [key for key in NEEDED if key not in table.column_names]
    if missing:
        raise InputError(f"{name}: the column {missing[0]} is missing.")
    if twice := [key for key in (*NEEDED, *OTHERS) if table.column_names.count(key) > 1]:
        raise InputError(f"{name}: the column {twice[0]} appears twice.")
    timestamp, lengths = _numbers(table, "timestamp", name), _numbers(table, "input_length", name)
    nothing = np.empty(0, np.int64), np.zeros(len(table) + 1, np.int64)
    hash_ids, offsets = _lists(table, "hash_ids", name) if "hash_ids" in table.column_names else nothing
    has_outputs = "output_hash_ids" in table.column_names
    output_ids, output_offsets = _lists(table, "output_hash_ids", name) if has_outputs else (None, None)
    links = {key: _numbers(table, key, name) for key in LINKS if key in table.column_names}
    has_waits = "dependencies" in table.column_names
    more = _extra(table, name) if "extra" in table.column_names and extra == "keep" else {}
    return Columns(
        timestamp, lengths, _output_lengths(table, name), hash_ids, offsets,
        session=links.get("session"), parent=links.get("parent"), domain=links.get("domain"), extra=more,
        output_ids=output_ids, output_offsets=output_offsets,
        dependencies=dependencies_of(table.column("dependencies"), name) if has_waits else None,
        **{key: numbers_in(table.column(key), NUMBERS[key], name) for key in NUMBERS if key in table.column_names},
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


def _output_lengths(table, name) -> np.ndarray:
    """The output lengths; unknown where they are null, or the column is missing."""
    if "output_length" not in table.column_names:
        return np.full(len(table), UNKNOWN_LENGTH)
    place = table.column_names.index("output_length")
    has_length = table.column(place).is_valid().to_numpy()
    if not has_length.all():
        table = table.set_column(place, "output_length", table.column(place).fill_null(0))
    values = _numbers(table, "output_length", name)
    if has_length.all() and values.min(initial=0) >= 0:
        return values
    return np.where(has_length, np.where(values == UNKNOWN_LENGTH, NEGATIVE, values), UNKNOWN_LENGTH)


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
