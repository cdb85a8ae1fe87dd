"""The output of commands: results on stdout, progress and summaries on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

NAME_WIDTH = 12  # of the names of a summary
PASTED = ("use", "wrote", "audit")  # lines of commands and files, which a line break would damage


def console() -> Any:
    """The console for progress and summaries: stderr, so that a trace can go to stdout."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        console.width = 160  # a pipe has no width to wrap at
    return console


def print_lines(lines: Iterable[tuple[str, object]]) -> None:
    """Print a summary on stderr: each line has a name and a value."""
    screen = console()
    for name, value in lines:
        print_line(screen, f"{name:<{NAME_WIDTH}}{value}")


def print_line(screen: Any, line: str) -> None:
    """Print a name and a value; on a terminal a long value wraps below itself, unless it is one to paste."""
    import textwrap

    if screen.is_terminal and line.split(" ")[0] not in PASTED:
        indent = " " * NAME_WIDTH
        line = textwrap.fill(line, screen.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    screen.print(line, highlight=False, markup=False)


def rejected(reasons: Mapping[str, int]) -> Iterator[str]:
    """The lines of a summary with the most frequent reasons for which requests were rejected."""
    for reason, count in sorted(reasons.items(), key=lambda row: -row[1])[:5]:
        yield f"rejected    {count:,}: {reason}"


def print_json(values: object) -> None:
    """Print one JSON object on stdout."""
    import orjson

    click.echo(orjson.dumps(values, option=orjson.OPT_INDENT_2))


def print_result(values: Any, remarks: Mapping[str, str], *, as_json: bool, as_csv: str | None) -> bool:
    """Print a result as JSON or CSV, with its remarks: a key of JSON, lines on stderr beside CSV.

    Args:
        values: The JSON object.
        remarks: Name -> sentence.
        as_json: Print JSON.
        as_csv: The text of the CSV, if that is printed.

    Returns:
        Whether something was printed.
    """
    if as_json:
        print_json(values | ({"remarks": dict(remarks)} if remarks else {}))
    elif as_csv is not None:
        click.echo(as_csv, nl=False)
        print_lines(("note", sentence) for sentence in remarks.values())
    return as_json or as_csv is not None


def print_json_line(values: object) -> None:
    """Print one JSON object on a line of stdout."""
    import orjson

    click.echo(orjson.dumps(values))


def print_tables(tables: Iterable[Any]) -> None:
    """Print tables on stdout, separated by empty lines: in colour on a terminal, plain in a pipe.

    A terminal, and a pipe with COLUMNS, get the columns that fit; a pipe without COLUMNS gets all of them.
    """
    from rich.console import Console

    from .._base.tables import TextTable

    tables = list(tables)
    console = Console(soft_wrap=True)
    if _line_width(console) is None:
        widths = [table.width() for table in tables if isinstance(table, TextTable)]
        console.width = max([240, *widths])
    with console.capture() as captured:
        for number, table in enumerate(tables):
            console.print(*([""] if number else []), table, sep="\n")
    click.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def print_notes(notes: Iterable[str]) -> None:
    """Print sentences on stdout, one a line; where a line has a width they wrap between words."""
    import textwrap

    from rich.console import Console

    width = _line_width(Console())
    for note in notes:
        click.echo(note if width is None else textwrap.fill(note, width, break_on_hyphens=False))


def _line_width(console: Any) -> int | None:
    """The width of a line: of the terminal, or COLUMNS in a pipe; None in a pipe without COLUMNS, which cuts nothing."""
    import os

    has_width = console.is_terminal or (os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]) > 0)
    return console.width if has_width else None
