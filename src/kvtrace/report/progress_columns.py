"""The columns of each progress line, with the time that remains.

`rich.progress` takes 20 ms to import, so only a terminal loads this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from .._base.units import short

WIDTH = 30  # of a bar, at most; narrower terminals shorten the bar, then the text


def progress_line(console: Console, columns: Sequence[ProgressColumn]) -> Progress:
    """A line of some columns, which is erased at the end."""
    for column in columns:  # a line that wraps would scroll
        table_column = column.get_table_column().copy()
        table_column.no_wrap, table_column.overflow = True, "ellipsis"
        column._table_column = table_column
    return Progress(*columns, console=console, transient=True, expand=True, redirect_stdout=False)


class _Share(ProgressColumn):
    """The share of the work in percent."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.percentage:>3.0f} %")


class _Requests(ProgressColumn):
    """The number of requests in all."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"of {short(task.total)} requests")


class _Rate(ProgressColumn):
    """The rate of the task: its field `rate`, else completed requests per second."""

    def render(self, task: Task) -> Text:
        if "rate" in task.fields:
            return Text(task.fields["rate"])
        return Text(f"{short(task.speed)} requests/s" if task.speed else "")


class _Remaining(ProgressColumn):
    """The time that remains, from the time of the finished work; a later update corrects it."""

    def render(self, task: Task) -> Text:
        expected = task.fields.get("expected")
        if expected is None or task.elapsed is None:
            return Text("-:--:--")
        return Text(str(timedelta(seconds=round(max(0.0, expected - task.elapsed)))))


def _name() -> TextColumn:
    return TextColumn("[bold]{task.description}")


def _bar() -> BarColumn:
    return BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=WIDTH, min_width=5))


COLUMNS: dict[str, Callable[[], list[ProgressColumn]]] = {  # what counts as work -> the columns of its line
    "bytes": lambda: [_name(), _bar(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
                      TextColumn("{task.fields[counts]}")],
    "requests": lambda: [_name(), _bar(), _Share(), _Requests(), _Rate(), TimeRemainingColumn()],
    "steps": lambda: [_bar(), MofNCompleteColumn(), TextColumn("{task.description}"), _Rate(), TimeRemainingColumn()],
    "shares": lambda: [_name(), _bar(), _Share(), _Rate(), _Remaining()],
}  # fmt: skip
