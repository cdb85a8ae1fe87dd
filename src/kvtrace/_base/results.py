"""The methods of every result: one line, a table in a notebook, a data frame, and a figure.

A class of results derives from `Result`, or from `PlottedResult` if it has a figure, and gives its one line and its
columns. The room `report/` draws the figures. It stands above the results, so the package registers it in `drawing`.

A `DescribedResult` gives its values once: a field, or a property with `column(...)`, is a key of the JSON object, and a
column of the CSV and of the data frame; with a heading it is also a column of the table. `Described` is a row of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from html import escape
from importlib import import_module
from itertools import count, islice
from typing import Any, TypeVar

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


Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[Any, str]  # where a part of a value is (its keys, from the outside) -> the heading of its column
Getter = TypeVar("Getter", bound=Callable[..., Any])  # of a property
_written = count()  # columns in the order of the source


@dataclass(frozen=True)
class ResultColumn(Mapping[str, Any]):
    """What a value of a result says of itself. It is the metadata of a field, and decorates the getter of a property.

    >>> from dataclasses import field
    >>> @dataclass(frozen=True, repr=False)
    ... class Run(DescribedResult):
    ...     hits: int = field(metadata=column("hits", ","))
    ...     blocks: int
    ...     @property
    ...     @column("hit rate", ".0%")
    ...     def rate(self):
    ...         return self.hits / self.blocks
    >>> Run(1, 2).to_dict(), [each.heading for each in columns_in(Run).values()]
    ({'hits': 1, 'blocks': 2, 'rate': 0.5}, ['hits', '', 'hit rate'])
    """

    heading: str = ""  # of its column in a table; without one a table does not have it
    format: str | Callable[[Any], str] = ""  # of a value in a cell, as in an f-string; without one the cell is text
    unit: str = ""  # after the number
    scale: float = 1  # what a cell multiplies the number by
    left: bool = False  # aligned to the left, although it has a format
    none: str = ""  # the cell of None
    rank: int = 1  # 0 is never left out of a narrow table; of the others the highest goes first
    note: bool = False  # text that may wrap; it needs no heading
    place: float = 100  # columns of a table stand in this order, those of one place in the order of the source
    when: Callable[[str, Rows], bool] | None = None  # a table of these rows has the column
    always: bool = False  # a table has the column even if no row has a value
    verbose: bool = False  # only a verbose table has it, or one for which `when` is true
    meaning: str = ""  # of its heading, printed below the table
    key: str = ""  # in JSON, if it is not the name of the field
    optional: bool = False  # left out of JSON if it is None or an empty object
    value: Callable[[Any], Any] | None = None  # what JSON has of it
    parts: Parts | Callable[[Any], Parts] | None = None  # of a value with several columns in a table
    spread: type | Mapping[str, ResultColumn] | None = None  # of an object whose keys stand among those of the result
    hidden: bool = False  # a field that is in no output
    order: int = 0

    def __call__(self, getter: Getter) -> Getter:
        getter.__dict__["column"] = self
        return getter

    def __getitem__(self, name: str) -> ResultColumn:
        return {"column": self}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("column",))

    def __len__(self) -> int:
        return 1

    def cell(self, value: Any) -> str:
        """A value as the text of a cell; text has no format."""
        if value is None or isinstance(value, str) or not self.format:
            return self.none if value is None else str(value)
        scaled = value * self.scale if self.scale != 1 else value
        return f"{self.format(scaled) if callable(self.format) else format(scaled, self.format)}{self.unit}"


def any_value(key: str, rows: Rows) -> bool:
    """Whether a value is not zero: a condition for a column.

    >>> any_value("evictions", [{"evictions": 0}, {"evictions": 2}])
    True
    """
    return any(row.get(key) for row in rows)


def varies(key: str, rows: Rows) -> bool:
    """Whether rows have different values: a condition for a column.

    >>> varies("policy", [{"policy": "lru"}, {"policy": "lru"}])
    False
    """
    return any(row.get(key) != rows[0].get(key) for row in rows)


def column(heading: str = "", format: str | Callable[[Any], str] = "", **options: Any) -> ResultColumn:
    """A column with the options of `ResultColumn`: `field(metadata=column("hit blocks", ","))`.

    >>> column("TPOT", ".1f", unit=" ms", scale=1000).cell(0.0123)
    '12.3 ms'
    """
    return ResultColumn(heading, format, **options, order=next(_written))


@cache
def attributes_in(kind: type) -> dict[str, ResultColumn]:
    """Attribute -> column: those of the bases first, then the fields of the class, then its properties."""
    columns: dict[str, ResultColumn] = {}
    every = getattr(kind, "_every_field", True)
    for base in reversed(kind.__mro__):
        described = {
            each.name: each.metadata.get("column", ResultColumn() if every else None)
            for each in (fields(base) if is_dataclass(base) else ())
        } | {
            name: getattr(value.fget if isinstance(value, property) else value.func, "column", None)
            for name, value in vars(base).items()
            if isinstance(value, property | cached_property)
        }
        written = [(name, each) for name, each in described.items() if each is not None]
        columns |= written if every else sorted(written, key=lambda item: item[1].order)
    names = getattr(kind, "_keys", ()) or [name for name, each in columns.items() if not each.hidden]
    return {name: columns.get(name, ResultColumn()) for name in names}


def columns_in(kind: type) -> dict[str, ResultColumn]:
    """Key of the JSON object -> column, where the keys of a spread object stand beside the others."""
    columns: dict[str, ResultColumn] = {}
    for name, each in attributes_in(kind).items():  # type: ignore[arg-type]
        if each.spread is None:
            columns[each.key or name] = each
        else:
            columns |= columns_in(each.spread) if isinstance(each.spread, type) else each.spread
    return columns


def as_json(value: Any) -> Any:
    """A value with the JSON objects of what it holds; a tuple is a list there, and NaN, what is not known, None.

    >>> as_json({"rates": (0.5, float("nan"))})
    {'rates': [0.5, None]}
    """
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, Mapping):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, float) and value != value:
        return None
    return value.to_dict() if hasattr(value, "to_dict") else value


class Described:
    """A frozen record whose fields, and properties with a column, make its JSON object."""

    _every_field = True  # also those without a column
    _keys: tuple[str, ...] = ()  # the attributes of the JSON object in their order, if they are not all
    _schema: int | None = None  # version of the keys, the first key of a result that is written alone

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; the docs of the command list its keys."""
        values: dict[str, Any] = {} if self._schema is None else {"schema": self._schema}
        for name, each in attributes_in(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            if each.optional and (value is None or value == {}):
                continue
            if value is None and isinstance(each.spread, type):
                value = dict.fromkeys(columns_in(each.spread))
            value = as_json(value if each.value is None else each.value(value))
            values |= {each.key or name: value} if each.spread is None else value
        return values


class DescribedResult(Described, Result):
    """A result that describes itself; its data frame has the keys of the JSON object."""

    def _columns(self) -> Mapping[str, Any]:
        return columns_of([self.to_dict()])


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
