"""How commands print: results on stdout, progress and summaries on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click


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
        screen.print(f"{name:<12}{value}", highlight=False, markup=False)


def print_json(values: object) -> None:
    """Print one JSON object on stdout."""
    import orjson

    click.echo(orjson.dumps(values, option=orjson.OPT_INDENT_2))


def print_tables(tables: Iterable[Any]) -> None:
    """Print tables on stdout, separated by empty lines: in colour on a terminal, plain and not wrapped in a pipe."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = 240  # a pipe has no width to wrap at
    with console.capture() as captured:
        for number, table in enumerate(tables):
            console.print(*([""] if number else []), table, sep="\n")
    click.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)
