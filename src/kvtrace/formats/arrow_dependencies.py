"""What requests wait for, and measured numbers, as they are read from Arrow columns; trace/frames.py makes these."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from .._base.errors import InputError
from .._base.offsets import offsets_of
from ..trace.dependencies import RELATIONS, TRIGGERS, Dependencies
from ..trace.measured import Number

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
    import pyarrow as pa

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
    >>> from kvtrace.trace.measured import MEASURED
    >>> numbers_in(pyarrow.chunked_array([[16, None]]), MEASURED["cached_tokens"], "t.parquet")
    array([16, -1])
    """
    import pyarrow as pa

    if pa.types.is_null(column.type):
        return np.full(len(column), number.unknown, dtype=number.dtype)
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
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _numbers_of(texts: Any, known: tuple[str, ...]) -> np.ndarray:
    """The number of each text among the known ones, -1 for others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(texts.cast(pa.string()), value_set=pa.array(known))
    return pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int8)
