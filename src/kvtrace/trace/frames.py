"""A trace as an Arrow table, as HTML for a notebook, and columns of such a table read back.

Dependencies and measured numbers are read back here; `formats/parquet.py` reads the other columns.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError
from .._base.results import headed, html_table, library
from .columns import NUMBERS, Columns, Number, numbers_of
from .dependencies import RELATIONS, TRIGGERS, Dependencies
from .unknown import UNKNOWN_LENGTH

MAX_ROWS = 5  # requests in the HTML
MAX_IDS = 8


def arrow(columns: Columns) -> Any:
    """A pyarrow Table with one row for each request; prompts are lists of ids, extra columns have their own names.

    >>> from kvtrace.trace.building import toy
    >>> arrow(toy("0 1", "0 2")).column_names
    ['timestamp', 'input_length', 'output_length', 'hash_ids']
    """
    pa = library("pyarrow")
    arrays = {name: pa.array(getattr(columns, name)) for name in ("timestamp", "input_length")}
    arrays["output_length"] = known_lengths(pa, columns.output_length)
    arrays["hash_ids"] = _lists(pa, columns.hash_ids, columns.offsets)
    if columns.output_ids is not None:
        arrays["output_hash_ids"] = _lists(pa, columns.output_ids, columns.output_offsets)
    for name in ("session", "parent", "domain"):
        if getattr(columns, name) is not None:
            arrays[name] = pa.array(getattr(columns, name))
    if columns.dependencies is not None:
        arrays["dependencies"] = dependency_lists(pa, columns.dependencies)
    for name, values in numbers_of(columns).items():
        arrays[name] = known_numbers(pa, name, values)
    for name, values in columns.extra.items():
        arrays[f"extra.{name}" if name in arrays else name] = _scalars(pa, values)
    return pa.table(arrays)


def dependency_lists(pa: Any, waits: Dependencies) -> Any:
    """Dependencies as an Arrow list of structs for each request: row, trigger, relation, delay_ms.

    >>> import pyarrow
    >>> waits = Dependencies.of([[], [(0, "completion", "sequence", 2.5)]])
    >>> dependency_lists(pyarrow, waits).to_pylist()
    [[], [{'row': 0, 'trigger': 'completion', 'relation': 'sequence', 'delay_ms': 2.5}]]
    """
    values = {
        "row": pa.array(waits.row),
        "trigger": pa.array(TRIGGERS).take(pa.array(waits.trigger)),
        "relation": pa.array(RELATIONS).take(pa.array(waits.relation)),
        "delay_ms": pa.array(waits.delay_ms),
    }
    structs = pa.StructArray.from_arrays(list(values.values()), names=list(values))
    return pa.LargeListArray.from_arrays(pa.array(waits.offsets), structs)


def known_lengths(pa: Any, output_length: np.ndarray) -> Any:
    """An Arrow array of output lengths, in which unknown ones are null.

    >>> import pyarrow
    >>> known_lengths(pyarrow, np.array([16, -1])).to_pylist()
    [16, None]
    """
    return pa.array(output_length, mask=output_length == UNKNOWN_LENGTH)


def known_numbers(pa: Any, name: str, values: np.ndarray) -> Any:
    """An Arrow array of a measured column, in which unknown numbers are null.

    >>> import pyarrow
    >>> known_numbers(pyarrow, "cached_tokens", np.array([16, -1])).to_pylist()
    [16, None]
    """
    return pa.array(values, mask=~NUMBERS[name].is_known(values))


def trace_html(trace: Columns) -> str:
    """A summary of a trace and its first requests as HTML.

    >>> from kvtrace.trace.building import toy
    >>> "<td>0 1 2</td>" in trace_html(toy("0 1 2"))
    True
    """
    rows = [
        (
            f"{trace.timestamp[row]:,g}",
            f"{trace.input_length[row]:,}",
            "unknown" if trace.output_length[row] == UNKNOWN_LENGTH else f"{trace.output_length[row]:,}",
            _ids(trace, row),
        )
        for row in range(min(MAX_ROWS, len(trace)))
    ]
    more = len(trace) - len(rows)
    table = html_table(("timestamp (ms)", "input_length", "output_length", "hash_ids"), rows)
    return headed(trace, table, f"<p>and {more:,} more</p>" if more else "")


def _ids(trace, row):
    ids = trace.hash_ids[trace.offsets[row] : trace.offsets[row + 1]]
    rest = len(ids) - MAX_IDS
    return " ".join(map(str, ids[:MAX_IDS].tolist())) + (f" and {rest:,} more" if rest > 0 else "")


def _lists(pa, ids, offsets):
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))


def _scalars(pa, values):
    """An Arrow array of a column; values of several types become text."""
    if values.dtype != object:
        return pa.array(values)
    kinds = {type(value) for value in values.tolist()} - {type(None)}
    if len(kinds) <= 1:
        return pa.array(values.tolist())
    return pa.array([None if value is None else str(value) for value in values.tolist()])


FIELDS = ("row", "trigger", "relation", "delay_ms")


def dependencies_of(column: Any, path: str) -> Dependencies:
    """The dependencies in a column of lists of structs; a trigger or relation that is unknown becomes -1.

    Args:
        column: A pyarrow ChunkedArray.
        path: The name of the file in messages.

    Raises:
        InputError: A row has no list, or a dependency is not complete.

    >>> import pyarrow
    >>> from kvtrace.trace.frames import dependency_lists
    >>> waits = Dependencies.of([[], [(0, "completion", "sequence", 2.5)]])
    >>> dependencies_of(pyarrow.chunked_array([dependency_lists(pyarrow, waits)]), "t.parquet") == waits
    True
    """
    pa = library("pyarrow")

    kinds = pa.types
    if not (kinds.is_list(column.type) or kinds.is_large_list(column.type)) or column.null_count:
        raise InputError(f"{path}: the column dependencies does not have a list in every row.")
    inner = column.type.value_type
    if not kinds.is_struct(inner) or not set(FIELDS) <= {inner.field(place).name for place in range(inner.num_fields)}:
        raise InputError(f"{path}: the column dependencies does not have lists of {', '.join(FIELDS)}.")
    structs = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=inner).combine_chunks()
    values = {name: structs.field(name) for name in FIELDS}
    is_typed = {
        "row": kinds.is_integer(values["row"].type),
        "delay_ms": kinds.is_integer(values["delay_ms"].type) or kinds.is_floating(values["delay_ms"].type),
        "trigger": _is_text(values["trigger"].type),
        "relation": _is_text(values["relation"].type),
    }
    for name in FIELDS:
        if not is_typed[name] or values[name].null_count or structs.null_count:
            kind = "a text" if name in ("trigger", "relation") else "a number"
            raise InputError(f"{path}: the column dependencies does not have {kind} as {name} in every dependency.")
    return Dependencies(
        offsets_of(np.concatenate([c.value_lengths().to_numpy() for c in column.chunks] or [np.empty(0, np.int64)])),
        values["row"].to_numpy(zero_copy_only=False),
        _numbers_of(values["trigger"], TRIGGERS), _numbers_of(values["relation"], RELATIONS),
        values["delay_ms"].to_numpy(zero_copy_only=False),
    )  # fmt: skip


def numbers_in(column: Any, number: Number, path: str) -> np.ndarray:
    """A measured column; null becomes the value for unknown.

    >>> import pyarrow
    >>> from kvtrace.trace.columns import MEASURED
    >>> numbers_in(pyarrow.chunked_array([[16, None]]), MEASURED["cached_tokens"], "t.parquet")
    array([16, -1])
    """
    pa = library("pyarrow")

    if pa.types.is_null(column.type):
        return number.unknowns(len(column))
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(f"{path}: the column {number.name} does not have numbers.")
    if number.dtype is np.float64:
        return column.cast(pa.float64(), safe=False).to_numpy()
    whole = None
    with suppress(pa.ArrowInvalid):  # of a fraction, or of more than 64 bits; Arrow's error quotes the value
        whole = column.cast(pa.int64()).fill_null(int(number.unknown))
    if whole is None:
        raise InputError(f"{path}: the column {number.name} has a number that is not a 64-bit integer.")
    return whole.to_numpy()


def _is_text(kind: Any) -> bool:
    pa = library("pyarrow")

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _numbers_of(texts: Any, vocabulary: tuple[str, ...]) -> np.ndarray:
    """The number of each text in the vocabulary, -1 for others."""
    pa = library("pyarrow")
    pc = library("pyarrow.compute")

    places = pc.index_in(texts.cast(pa.string()), value_set=pa.array(vocabulary))
    return pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int8)
