"""Mooncake's JSON Lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`.

The format of the FAST'25 paper's traces, https://github.com/kvcache-ai/Mooncake. kvtrace also reads and writes
`output_hash_ids`, `session_id`, `domain`, `turn` and what a service measured, and, on request, other extra columns.
"""

from __future__ import annotations

from typing import Any

from .._base.errors import UsageError
from ..trace.columns import Columns
from ..trace.measured import MEASURED
from . import scalars
from .jsonl_read import IDS, Rows
from .jsonl_write import Field, lengths, lists, milliseconds, require_writable, whole, write_rows
from .measured_keys import measured_keys, require_other_names, take_measured
from .read_result import ReadResult

KEPT = ("session_id", "domain", *MEASURED)  # always read
FIRST = ("type", "turn")  # extra columns of all formats: in this order, whichever a file shows first


def result_of(rows: Rows, path: str, on_error=None) -> ReadResult:
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
