"""A trace as a data frame: an Arrow table first, pandas and Polars from it; and HTML for a notebook."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Any

from .._base.errors import UsageError
from .columns import Columns

SHOWN = 5  # requests of a trace that a notebook shows
IDS_SHOWN = 8


def arrow(columns: Columns):
    """A pyarrow Table, one row a request; prompts are lists of ids, and extra columns stand under their own names.

    >>> from kvtrace.trace.building import toy
    >>> arrow(toy("0 1", "0 2")).column_names
    ['timestamp', 'input_length', 'output_length', 'hash_ids']
    """
    pa = library("pyarrow")
    found = {name: pa.array(getattr(columns, name)) for name in ("timestamp", "input_length", "output_length")}
    found["hash_ids"] = _lists(pa, columns.hash_ids, columns.offsets)
    if columns.output_ids is not None:
        found["output_hash_ids"] = _lists(pa, columns.output_ids, columns.output_offsets)
    for name in ("session", "parent"):
        if getattr(columns, name) is not None:
            found[name] = pa.array(getattr(columns, name))
    for name, values in columns.extra.items():
        found[f"extra.{name}" if name in found else name] = _scalars(pa, values)
    return pa.table(found)


def pandas(table):
    """An Arrow table as a pandas DataFrame."""
    library("pandas")
    return table.to_pandas()


def polars(table):
    """An Arrow table as a Polars DataFrame."""
    return library("polars").from_arrow(table)


def trace_html(trace: Columns) -> str:
    """What a trace is, and its first requests, as HTML tables.

    >>> from kvtrace.trace.building import toy
    >>> "<td>0 1 2</td>" in trace_html(toy("0 1 2"))
    True
    """
    rows = [
        (
            f"{trace.timestamp[row]:,g}",
            f"{trace.input_length[row]:,}",
            f"{trace.output_length[row]:,}",
            _ids(trace, row),
        )
        for row in range(min(SHOWN, len(trace)))
    ]
    more = len(trace) - len(rows)
    return (
        f"<p>{escape(repr(trace))}</p>"
        + _html_table(("timestamp (ms)", "input_length", "output_length", "hash_ids"), rows)
        + (f"<p>and {more:,} more</p>" if more else "")
    )


def _ids(trace, row):
    ids = trace.hash_ids[trace.offsets[row] : trace.offsets[row + 1]]
    rest = len(ids) - IDS_SHOWN
    return " ".join(map(str, ids[:IDS_SHOWN].tolist())) + (f" and {rest:,} more" if rest > 0 else "")


def _html_table(header, rows) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def library(name: str) -> Any:
    """A library of data frames; UsageError says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"data frames need {name}. Try `pip install 'kvtrace[frames]'`.") from None


def _lists(pa, ids, offsets):
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))


def _scalars(pa, values):
    """An Arrow array of a column; values of several kinds become text."""
    if values.dtype != object:
        return pa.array(values)
    kinds = {type(value) for value in values.tolist()} - {type(None)}
    if len(kinds) <= 1:
        return pa.array(values.tolist())
    return pa.array([None if value is None else str(value) for value in values.tolist()])
