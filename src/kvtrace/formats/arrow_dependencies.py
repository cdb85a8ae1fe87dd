"""What requests wait for, and how long they took, as they are read from Arrow columns; trace/frames.py makes these."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.errors import InputError
from .._base.offsets import offsets_of
from ..trace.dependencies import RELATIONS, TRIGGERS, Dependencies

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


def service_times(column: Any, path: str) -> np.ndarray:
    """The service times in a column of numbers, in ms; null becomes NaN: unknown."""
    import pyarrow as pa

    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(f"{path}: the column service_ms does not have numbers.")
    return column.cast(pa.float64(), safe=False).to_numpy()


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
