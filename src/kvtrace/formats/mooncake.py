"""Mooncake's JSON Lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`.

The format of the FAST'25 paper's traces, https://github.com/kvcache-ai/Mooncake. kvtrace also reads and writes
`output_hash_ids`, `session_id`, `domain`, `turn` and, on request, other extra columns. What a service measured has keys
named as its columns, in any JSON format; a key is omitted where its number is unknown.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.errors import RowError, UsageError
from ..trace.columns import MEASURED, Columns, measured_of
from . import scalars
from .jsonl_read import IDS, JsonRows, OnError, time_of, whole_number
from .jsonl_write import Field, lengths, lists, milliseconds, require_writable, whole, write_rows
from .sidecar import ReadResult


def measured_number(value: Any, name: str) -> float:
    """The value of a key; null is the value for unknown, RowError if it is not a number of its kind.

    >>> measured_number(2, "ttft_ms"), measured_number(None, "cached_tokens")
    (2.0, -1)
    """
    if value is None:
        return MEASURED[name].unknown
    return whole_number(value, name) if MEASURED[name].dtype is np.int64 else time_of(value, name)


def take_measured(result: ReadResult, on_error: OnError | None = None) -> None:
    """Move the measured columns of a file from its extra columns to columns of their own.

    A value that is not a number is an error of its row: it is raised, or passed to `on_error` and read as unknown.
    """
    columns = result.columns
    for name in [name for name in MEASURED if name in columns.extra]:
        setattr(columns, name, _numbers(columns.extra.pop(name), name, result, on_error))


def measured_keys(columns: Columns) -> dict[str, np.ndarray]:
    """The measured columns by key, None where a number is unknown; whole numbers have no decimal point.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> measured_keys(replace_columns(toy("0", "1"), cached_tokens=[1, 0], ttft_ms=[2.5, np.nan]))
    {'cached_tokens': array([1, 0]), 'ttft_ms': array([2.5, None], dtype=object)}
    """
    return {name: _printable(values, MEASURED[name].is_known(values)) for name, values in measured_of(columns).items()}


def require_other_names(extra: dict[str, Any]) -> None:
    """UsageError if an extra column has the name of a measured one: it would be read back as that."""
    if clash := [name for name in MEASURED if name in extra]:
        raise UsageError(f"the extra column {clash[0]!r} conflicts with the measured column. Rename it.")


def _numbers(values: np.ndarray, name: str, result: ReadResult, on_error: OnError | None) -> np.ndarray:
    number = MEASURED[name]
    if values.dtype == np.int64 or (values.dtype == np.float64 and number.dtype is np.float64):
        return values.astype(number.dtype)
    numbers = number.unknowns(len(values))
    for row, value in enumerate(values.tolist()):
        try:
            numbers[row] = measured_number(value, name)
        except RowError as error:
            located = result.error(row, error.reason)
            if on_error is None:
                raise located from None
            on_error(located)
    return numbers


def _printable(values: np.ndarray, is_known: np.ndarray) -> np.ndarray:
    is_whole = is_known & (np.floor(values) == values)
    if is_whole.all():
        return values.astype(np.int64)
    printable = values.astype(object)
    printable[is_whole] = values[is_whole].astype(np.int64)
    printable[~is_known] = None
    return printable


KEPT = ("session_id", "domain", *MEASURED)  # always read
FIRST = ("type", "turn")  # extra columns of all formats: in this order, whichever a file shows first


def result_of(rows: JsonRows, path: str, on_error=None) -> ReadResult:
    """JSON rows as Mooncake's columns."""
    others = dict(rows.others)
    session = scalars.labels(others.pop("session_id")) if "session_id" in others else None
    domain = scalars.labels(others.pop("domain")) if "domain" in others else None
    columns = Columns(
        rows.timestamp, rows.input_length, rows.output_length, rows.hash_ids, rows.offsets,
        session=session, extra=others, output_ids=rows.output_ids, output_offsets=rows.output_offsets,
        domain=domain,
    )  # fmt: skip
    result = ReadResult(columns, path, "mooncake", lines=rows.lines, nested=rows.nested, lengths_only=rows.lengths_only)
    take_measured(result, on_error)
    return result


def write(
    stream, columns: Columns, *, first_id: int = 0, extra: bool = False, description=None, ids: bool = True
) -> None:
    """Write the four keys; outputs, turns, sessions, domains and measured numbers if there are any.

    With `extra` also the extra columns; without `ids` no blocks.
    """
    require_writable(columns, first_id)
    more = extra_of(columns) if extra else links_of(columns)
    fields = {name: field for name, field in fields_of(columns).items() if ids or name not in IDS}
    write_rows(stream, columns, fields, first_id=first_id, extra=more)


def fields_of(columns: Columns) -> dict[str, Field]:
    """The fields of the rows by key, in order."""
    fields = {
        "timestamp": milliseconds(columns.timestamp),
        "input_length": whole(columns.input_length),
        "output_length": lengths(columns.output_length),
        "hash_ids": lists(columns.hash_ids, columns.offsets),
    }
    if columns.output_ids is not None and columns.output_offsets is not None:
        fields["output_hash_ids"] = lists(columns.output_ids, columns.output_offsets)
    return fields


def extra_of(columns: Columns) -> dict[str, Any]:
    """The extra columns, those of Qwen-Bailian's format first, sessions, domains and measured columns, in order."""
    more = {name: columns.extra[name] for name in (*FIRST, *columns.extra) if name in columns.extra}
    for name, taken in (("session_id", columns.session), ("domain", columns.domain)):
        if taken is not None and name in more:
            raise UsageError(
                f"the extra column {name!r} conflicts with the trace's {name.partition('_')[0]}s. Rename it."
            )
    require_other_names(more)
    return more | _sessions(columns) | domains_of(columns) | measured_keys(columns)


def links_of(columns: Columns) -> dict[str, Any]:
    """The columns that are always written, in the order of `extra_of`: turns, sessions, domains, measured ones."""
    turns = {"turn": columns.extra["turn"]} if "turn" in columns.extra else {}
    return turns | _sessions(columns) | domains_of(columns) | measured_keys(columns)


def _sessions(columns: Columns) -> dict[str, Any]:
    return {} if columns.session is None else {"session_id": scalars.numbered(columns.session)}


def domains_of(columns: Columns) -> dict[str, Any]:
    """The domains by their key; requests of none have no value, and nothing without the column."""
    return {} if columns.domain is None else {"domain": scalars.numbered(columns.domain)}
