"""Tables of text, independent of their display.

A rich console prints them (`__rich__`); a notebook shows them as HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .results import html_table


@dataclass
class Column:
    """One column: its heading and alignment."""

    name: str
    right: bool = False  # aligned to the right, as numbers are
    dim: bool = False  # a note; it may wrap


@dataclass
class TextTable:
    """A title, columns, and rows of text.

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

    def add_column(self, name: str = "", *, right: bool = False, dim: bool = False) -> None:
        """Append a column."""
        self.columns.append(Column(name, right, dim))

    def add_columns(self, names: Iterable[str], *, right: bool = False) -> None:
        """Append columns of one alignment."""
        for name in names:
            self.add_column(name, right=right)

    def add_row(self, *cells: str) -> None:
        """Append a row: one cell for each column."""
        self.rows.append(cells)

    def __rich__(self) -> Any:
        """The table for a rich console."""
        from rich.table import Table
        from rich.text import Text

        drawn = Table(
            title=Text(self.title), title_justify="left", title_style="bold", box=None, pad_edge=False,
            padding=(0, 2, 0, 0), show_header=self.has_header,
            caption=Text(self.caption) if self.caption else None, caption_justify="left",
        )  # fmt: skip
        for column in self.columns:
            justify, style = "right" if column.right else "left", "dim" if column.dim else ""
            drawn.add_column(Text(column.name), justify=justify, style=style, no_wrap=not column.dim)  # type: ignore[arg-type]
        for cells in self.rows:
            drawn.add_row(*(Text(cell) for cell in cells))
        return drawn


def html(tables: Iterable[TextTable]) -> str:
    """Tables as HTML, every cell escaped.

    >>> html([TextTable("Trace", [Column("name")], [("requests",)])])[:40]
    '<table><caption>Trace</caption><thead><t'
    """
    return "".join(
        html_table([column.name for column in table.columns] if table.has_header else [], table.rows, table.title)
        for table in tables
    )


def printable(name: str) -> str:
    """A name from a trace, without terminal control characters.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() else "?" for c in name)


def number(value: float | None) -> str:
    """A figure with a readable number of digits: 12,035.1 or 0.3843; - for None.

    >>> number(12035.14), number(0.38432), number(7), number(None)
    ('12,035.1', '0.3843', '7', '-')
    """
    if value is None:
        return "-"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.4f}" if abs(value) < 1 else f"{value:,.2f}"
