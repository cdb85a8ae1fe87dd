"""The methods of every result: one line, a table in a notebook, a data frame, and a figure.

A class of results derives from `Result`, or from `PlottedResult` if it has a figure, and gives its one line and its
columns. The room `report/` draws the figures. It stands above the results, so the package registers it in `drawing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib import import_module
from itertools import islice
from typing import Any

from .errors import UsageError

MAX_ROWS = 10  # in the HTML of a result

drawing: dict[str, Callable[..., Any]] = {}  # "figure" -> a function from a result to its plotly figure


class Result:
    """A result with one line, a small table in a notebook, and data frames.

    >>> class Doubled(Result):
    ...     def _headline(self):
    ...         return "2 numbers"
    ...     def _columns(self):
    ...         return {"number": [1, 2], "doubled": [2, 4]}
    >>> Doubled()
    Doubled(2 numbers)
    """

    _shown: tuple[str, ...] = ()  # columns of the table in a notebook, all if empty

    def _headline(self) -> str:
        """The main figures, for `repr`."""
        raise NotImplementedError

    def _columns(self) -> Mapping[str, Any]:
        """Column name -> values, for data frames."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._headline()})"

    def _repr_html_(self) -> str:
        return headed(self, column_table(self._columns(), self._shown))

    def to_arrow(self) -> Any:
        """The result as a pyarrow Table; needs the `frames` extra."""
        return library("pyarrow").table(dict(self._columns()))

    def to_pandas(self) -> Any:
        """The result as a pandas DataFrame; needs the `frames` extra."""
        library("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """The result as a Polars DataFrame; needs the `frames` extra."""
        return library("polars").from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)


class PlottedResult(Result):
    """A result that can also be drawn."""

    def plot(self) -> Any:
        """A plotly Figure of the result; needs the `report` extra."""
        return drawing["figure"](self)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns; a value that a row lacks is None, and nested objects have joined names.

    >>> columns_of([{"a": 1}, {"a": 2, "b": {"c": 3}}])
    {'a': [1, 2], 'b_c': [None, 3]}
    """
    flat = [flat_row(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return {name: [row.get(name) for row in flat] for name in names}


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without nested objects and lists: `ttft_s: {p50: 1}` becomes `ttft_s_p50: 1`, and a list is left out.

    >>> flat_row({"a": {"b": 1}, "c": [1, 2], "d": "e"})
    {'a_b': 1, 'd': 'e'}
    """
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{key}": nested for key, nested in flat_row(value).items()}
        elif not isinstance(value, list | tuple):
            flat[name] = value
    return flat


def headed(result: object, *tables: str) -> str:
    """The HTML of a result: its one line, and its tables."""
    return f"<p>{escape(repr(result))}</p>" + "".join(tables)


def column_table(columns: Mapping[str, Any], shown: Iterable[str] = ()) -> str:
    """The first rows of columns as an HTML table; every cell is escaped.

    >>> column_table({"name": ["<b>"], "rate": [0.25]}).partition("<tbody>")[2]
    '<tr><td>&lt;b&gt;</td><td>0.25</td></tr></tbody></table>'
    """
    names = [name for name in shown if name in columns] or list(columns)
    rows = islice(zip(*(columns[name] for name in names), strict=True), MAX_ROWS)
    length = len(next(iter(columns.values()), ()))
    more = f"<p>and {length - MAX_ROWS:,} more</p>" if length > MAX_ROWS else ""
    return html_table(names, [[cell(value) for value in row] for row in rows]) + more


def html_table(header: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> str:
    """A table as HTML, without style or script; every cell is escaped.

    >>> html_table(["a"], [["<"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;</td></tr></tbody></table>'
    """
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    cells = "".join(f"<th>{escape(name)}</th>" for name in header)
    head = f"<thead><tr>{cells}</tr></thead>" if cells else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def cell(value: Any) -> str:
    """A value as the text of a table cell.

    >>> [cell(value) for value in (None, 12031, 0.384321, "lru")]
    ['', '12,031', '0.3843', 'lru']
    """
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value)
    try:
        return f"{value:,.4g}" if value != int(value) else f"{int(value):,}"
    except (TypeError, ValueError, OverflowError):  # not a number, or not a finite one
        return str(value)


def library(name: str) -> Any:
    """Import a data frame library; UsageError if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"data frames need {name}. Try `pip install 'kvtrace[frames]'`.") from None
