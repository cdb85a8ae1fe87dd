"""A trace as an Arrow table, and as HTML for a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.results import headed, html_table, library
from .columns import Columns
from .dependencies import RELATIONS, TRIGGERS, Dependencies
from .measured import NUMBERS, numbers_of
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
