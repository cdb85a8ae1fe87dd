"""Tables of text, independent of their display, and CSV that spreadsheets open as data.

A rich console prints a table (`__rich__`); a notebook shows it as HTML. In CSV, a cell whose text begins with =, +, -,
@, a tab or a carriage return gets an apostrophe before it, as OWASP recommends, so that no text becomes a formula
(https://owasp.org/www-community/attacks/CSV_Injection). Numbers are written unchanged.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from .results import ResultColumn, Rows, html_table

GAP = 2  # blank columns between two columns of a table
MIN_NOTE = 24  # a column of notes wraps, but is not narrower than this


@dataclass
class Column:
    """One column: its heading, its alignment, and when a narrow terminal moves it below the others."""

    name: str
    right: bool = False  # aligned to the right, as numbers are
    dim: bool = False  # a note; it may wrap
    rank: int = 1  # 0 never moves; of the others the highest goes first, of equal ones the rightmost
    of: str = ""  # of a quantile behind another one: p90 behind TTFT p50 is of TTFT


@dataclass
class TextTable:
    """A title, columns, rows of text, and the lines below them.

    On a terminal that is too narrow, the columns that do not fit stand below the others, beside the columns that name
    the rows. Notes that do not fit beside the rows stand below them.

    >>> table = TextTable("Trace", [Column("name"), Column("value", right=True)])
    >>> table.add_row("requests", "12")
    >>> table.rows
    [('requests', '12')]
    """

    title: str
    columns: list[Column] = field(default_factory=list)
    rows: list[tuple[str, ...]] = field(default_factory=list)
    has_header: bool = True
    caption: str = ""
    legend: dict[str, str] = field(default_factory=dict)  # a word of the table -> its meaning
    remedy: str = "use a wider terminal"  # how to see a column that does not even fit alone

    def add_column(self, name: str = "", *, right: bool = False, dim: bool = False, rank: int | None = None) -> None:
        """Append a column. The first one names the rows, unless it has a rank."""
        self.columns.append(Column(name, right, dim, (1 if self.columns else 0) if rank is None else rank))

    def add_columns(self, names: Iterable[str], *, right: bool = False, rank: int | None = None) -> None:
        """Append columns of one alignment."""
        for name in names:
            self.add_column(name, right=right, rank=rank)

    def add_row(self, *cells: str) -> None:
        """Append a row: one cell for each column."""
        self.rows.append(cells)

    def add_results(
        self,
        columns: Mapping[str, ResultColumn],
        rows: Rows,
        shown: Iterable[str] = (),
        *,
        verbose: bool = False,
        **headings: str,
    ) -> TextTable:
        """Append the columns that have a heading and apply to the rows, what they mean, and the rows.

        Args:
            columns: Key of a row -> its column.
            rows: The values by key; text stands in a cell as it is.
            shown: The keys of the columns in their order, in place of those that apply.
            verbose: Also the columns of a verbose table.
            headings: Key -> another heading.

        >>> from .results import column
        >>> columns = {"policy": column("policy"), "rate": column("hit rate", ".2f")}
        >>> TextTable("Runs").add_results(columns, [{"policy": "lru", "rate": 0.5}]).rows
        [('lru', '0.50')]
        """
        names = shown or sorted(
            (key for key, each in columns.items() if _applies(key, each, rows, verbose)),
            key=lambda key: columns[key].place,
        )
        cells = [
            cell
            for key in names
            for cell in _cells(key, replace(columns[key], heading=headings.get(key, columns[key].heading)), rows)
        ]
        for heading, each, _ in cells:
            before = self.columns[-1] if self.columns and re.fullmatch(r"p\d+", heading) else Column("")
            is_right = bool(each.format) and not each.left
            self.columns.append(Column(heading, right=is_right, dim=each.note, rank=each.rank))
            self.columns[-1].of = before.of or before.name.partition(" ")[0]
            if each.meaning and heading == each.heading:
                self.legend[heading] = each.meaning
        for row in rows:
            self.add_row(*(each.cell(_value(row, path)) for _, each, path in cells))
        return self

    def width(self) -> int:
        """The width at which nothing wraps."""
        widths = [max(len(column.name), self._cell_width(number)) for number, column in enumerate(self.columns)]
        return max(
            sum(widths) + GAP * len(widths), len(self.title), len(self.caption), *map(len, self._legend_lines()), 0
        )

    def fitted(self, width: int) -> tuple[list[int], list[str]]:
        """The columns that fit a terminal, by number, and their headings, which may have two lines.

        >>> table = TextTable("Hits", [Column("policy", rank=0), Column("block hit rate"), Column("evictions")])
        >>> table.add_row("lru", "0.2789", "189,755")
        >>> table.fitted(40)
        ([0, 1, 2], ['policy', 'block hit rate', 'evictions'])
        >>> table.fitted(28)
        ([0, 1, 2], ['policy', 'block\\nhit rate', 'evictions'])
        >>> table.fitted(20)
        ([0, 1], ['policy', 'block\\nhit rate'])
        """
        shown = list(range(len(self.columns)))
        names = self._headings(shown)
        if self._needs(shown, names) > width:
            names = self._headings(shown, _in_two_lines)
        while self._needs(shown, names) > width and any(self.columns[number].rank for number in shown):
            shown.remove(max(shown, key=lambda number: (self.columns[number].rank, number)))
            names = self._headings(shown, _in_two_lines)
        return shown, names

    def _headings(self, shown: Sequence[int], form: Callable[[str], str] = str) -> list[str]:
        """The headings of some columns; a quantile says of what it is where the column before it does not stand there.

        >>> table = TextTable("", [Column("TTFT p50"), Column("p90", of="TTFT"), Column("p99", of="TTFT")])
        >>> table._headings([0, 1, 2]), table._headings([1, 2])
        (['TTFT p50', 'p90', 'p99'], ['TTFT p90', 'p99'])
        """
        names = [self.columns[number].name for number in shown]
        for at, number in enumerate(shown):
            of = self.columns[number].of
            if of and not (at and shown[at - 1] == number - 1):
                names[at] = f"{of} {names[at]}"
        return [form(name) for name in names]

    def pieces(self, width: int) -> Iterator[tuple[list[int], list[str]]]:
        """The columns of each part of the table in a terminal, and their headings.

        Every part begins with the columns of rank 0 that stand first, which name the rows.

        >>> table = TextTable("Hits", [Column("policy", rank=0), Column("block hit rate"), Column("evictions")])
        >>> table.add_row("lru", "0.2789", "189,755")
        >>> [names for shown, names in table.pieces(20)]
        [['policy', 'block\\nhit rate'], ['policy', 'evictions']]
        """
        first, names = self.fitted(width)
        keys = list(itertools.takewhile(lambda number: not self.columns[number].rank, range(len(self.columns))))
        rest = [n for n, column in enumerate(self.columns) if n not in first and column.name and not column.dim]

        def fits(some: list[int]) -> bool:
            return self._needs(some, self._headings(some, _in_two_lines)) <= width

        parts: list[list[int]] = []
        for number in filter(lambda number: fits([*keys, number]), rest):
            if not parts or not fits([*parts[-1], number]):
                parts.append([*keys])
            parts[-1].append(number)
        if first != keys or not parts:
            yield first, names
        yield from ((part, self._headings(part, _in_two_lines)) for part in parts)

    def _needs(self, shown: list[int], names: list[str]) -> int:
        """The width of some columns with these headings."""
        headed = zip(shown, names, strict=True)
        widths = [max(self._cell_width(number, MIN_NOTE), *map(len, name.split("\n"))) for number, name in headed]
        return sum(widths) + GAP * (len(widths) - 1)

    def _cell_width(self, number: int, max_note: int | None = None) -> int:
        """The width of the widest cell of a column; a note needs no more than `max_note`."""
        widest = max((len(row[number]) for row in self.rows if number < len(row)), default=0)
        return min(widest, max_note) if max_note and self.columns[number].dim else widest

    def _is_note(self, number: int) -> bool:
        """Whether a column holds sentences, which stand below the rows where it does not fit."""
        return self.columns[number].dim

    def _legend_lines(self) -> list[str]:
        return [f"{word}: {meaning}" for word, meaning in self.legend.items()]

    def __rich_console__(self, _console: Any, options: Any) -> Iterator[Any]:
        """The table for a rich console, in parts of the columns that fit its width."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        if self.title:
            yield Text(self.title, style="bold", no_wrap=False, overflow="fold")
        parts = list(self.pieces(options.max_width))
        for shown, names in parts:
            drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=self.has_header)
            for number, name in zip(shown, names, strict=True):
                column = self.columns[number]
                justify, style = "right" if column.right else "left", "dim" if column.dim else ""
                drawn.add_column(
                    Text(name), justify=justify, style=style, no_wrap=not column.dim, overflow="fold", vertical="top",  # type: ignore[arg-type]
                )  # fmt: skip
            for cells in self.rows:
                drawn.add_row(*(Text(cells[number]) if number < len(cells) else Text() for number in shown))
            yield drawn
        is_shown = {number for shown, _ in parts for number in shown}
        left_out = [number for number in range(len(self.columns)) if number not in is_shown]
        for number in filter(self._is_note, left_out):  # advice is never what is cut
            for cells in self.rows:
                if number < len(cells) and cells[number]:
                    name = cells[parts[0][0][0]].strip()
                    yield Padding(Text(f"{name}: {cells[number]}", overflow="fold"), (0, 0, 0, GAP))
        missing = [name for number in left_out if (name := self.columns[number].name) and not self._is_note(number)]
        lines = [line for line in self._legend_lines() if line.partition(":")[0] not in missing]
        if missing:
            lines.append(f"Not shown: {', '.join(missing)}. To see all columns, {self.remedy}.")
        for line in (*lines, *filter(None, [self.caption])):
            yield Text(line, style="dim", no_wrap=False, overflow="fold")


def _in_two_lines(name: str) -> str:
    """A heading in two lines of about the same width.

    >>> _in_two_lines("request hit rate"), _in_two_lines("capacity")
    ('request\\nhit rate', 'capacity')
    """
    words = name.split(" ")
    splits = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words))]
    return "\n".join(min(splits, key=lambda split: max(map(len, split)))) if splits else name


def _applies(key: str, column: ResultColumn, rows: Rows, verbose: bool) -> bool:
    """Whether a table of the rows has a column."""
    if not (column.heading or column.parts or column.note):
        return False
    if rows and not column.always and all(row.get(key) is None for row in rows):
        return False
    return (verbose and column.verbose) or (not column.verbose if column.when is None else column.when(key, rows))


def _cells(key: str, column: ResultColumn, rows: Rows) -> Iterator[tuple[str, ResultColumn, tuple[Any, ...]]]:
    """Heading, column and path of each column in a table; a value with parts has several."""
    parts = column.parts or {(): column.heading}
    if callable(parts):
        parts = parts(next(row[key] for row in rows if key in row))
    for path, heading in parts.items():
        yield heading, column, (key, *path)


def _value(row: Mapping[str, Any], path: Sequence[Any]) -> Any:
    """The value at the end of a path, None where the row has none."""
    value: Any = row.get(path[0])
    for key in path[1:]:
        value = None if value is None else value[key]
    return value


def html(tables: Iterable[TextTable]) -> str:
    """Tables as HTML, every cell escaped.

    >>> html([TextTable("Trace", [Column("name")], [("requests",)])])[:40]
    '<table><caption>Trace</caption><thead><t'
    """
    return "".join(_html(table) for table in tables)


def _html(table: TextTable) -> str:
    """A table with every column, and the lines below it."""
    header = [column.name for column in table.columns] if table.has_header else []
    lines = [*table._legend_lines(), *filter(None, [table.caption])]
    return html_table(header, table.rows, table.title) + "".join(f"<p>{escape(line)}</p>" for line in lines)


def printable(name: str) -> str:
    """A name from a trace, without terminal control characters.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() else "?" for c in name)


def number(value: float | None) -> str:
    """A figure with a readable number of digits: 12,035.1 or 0.3843; - for None and NaN.

    >>> number(12035.14), number(0.38432), number(7), number(None), number(float("nan"))
    ('12,035.1', '0.3843', '7', '-', '-')
    """
    if value is None or value != value:
        return "-"
    if abs(value) < float("inf") and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.4f}" if abs(value) < 1 else f"{value:,.2f}"


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Iterable[Mapping[str, Any]], names: Iterable[str] = ()) -> str:
    """A header of `names` and the other keys of the rows, and one line for each row; a missing value is empty.

    >>> csv_text([{"policy": "=lru()", "gap": -1.5}, {"policy": "fifo"}], ["gap"])
    "gap,policy\\n-1.5,'=lru()\\n,fifo\\n"
    """
    rows = list(rows)
    columns = list(dict.fromkeys([*names, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """A value as a cell: text that a spreadsheet would run gets an apostrophe before it.

    >>> cell("@SUM(A1)"), cell(-3)
    ("'@SUM(A1)", -3)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
