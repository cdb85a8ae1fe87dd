"""Progress of long runs on one line of stderr: the share of the work, its rate, and the time that remains.

Nothing is printed unless stderr is a terminal. Each class defines what counts as work.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from .._base.input_files import reads_reported
from .._base.units import short

# Step -> its share of the time for a million requests of 24 blocks on average; steps of less than 1 % are left out.
REPORT = {
    "read": 17, "hit-curve": 19, "hits-over-time": 2, "requests": 1, "block-size": 25, "reuse": 5, "working-set": 7,
    "popularity": 3, "lengths": 4, "sessions": 17,
}  # fmt: skip
COMPARED = REPORT | {"read": 34, "compare": 60}  # of two traces
CHECKS = {"canonical": 8, "chains": 6, "anonymity": 6, "k_sharing": 6, "hidden_text": 2, "sidecar": 1}
RELEASE = {"read": 9, "coarsen": 37, "write": 9, "audit": 13} | CHECKS
AUDIT = {"read": 13} | CHECKS
ANALYZE, CURVE, COMPARE = {"read": 1, "count": 1}, {"read": 2, "curve": 1}, {"read": 2, "compare": 3}
CHECK, CONVERT, FIT = {"read": 1}, {"read": 1, "write": 1}, {"read": 3, "fit": 1}

WIDTH = 30  # of a bar, at most; narrower terminals shorten the bar, then the text


class _Bar:
    """A bar with some columns on one line; silent unless the console is a terminal."""

    def __init__(self, console: Console, quiet: bool, *columns: ProgressColumn):
        for column in columns:  # a line that wraps would scroll
            table_column = column.get_table_column().copy()
            table_column.no_wrap, table_column.overflow = True, "ellipsis"
            column._table_column = table_column
        disabled = quiet or not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=disabled, expand=True,
                             redirect_stdout=False)  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def _started(self, name: str = "", total: float | None = None, **fields: Any) -> TaskID:
        """The task of the bar. The bar has a thread, so it starts when it is needed: after workers are forked."""
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(name, total=total, **fields)
        return self._task


class Bar(_Bar):
    """The progress over the bytes of the input, and bytes per second."""

    def __init__(self, console: Console, quiet: bool = False):
        super().__init__(
            console, quiet, TextColumn("[bold]{task.description}"), _bar(), DownloadColumn(),
            TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[counts]}"),
        )  # fmt: skip

    def update(self, progress) -> None:
        """Show `done` and `total` bytes, and the `requests` and `tokens` so far."""
        task = self._started("anonymizing", progress.total or None, counts="")
        counts = f"{short(progress.requests)} requests, {short(progress.tokens)} tokens"
        self._bar.update(task, completed=progress.done, counts=counts)


class RequestProgress(_Bar):
    """Progress over requests: drawn ones, or simulated ones (those of the trace times the number of simulations)."""

    def __init__(self, console: Console, quiet: bool = False, name: str = "simulating"):
        columns = (_bar(), _Share(), _Requests(), _Rate(), TimeRemainingColumn())
        super().__init__(console, quiet, TextColumn(f"[bold]{name}"), *columns)

    def expect(self, requests: int) -> None:
        """Set the total number of requests."""
        self._bar.update(self._started(), total=requests)

    def update(self, requests: int) -> None:
        """Add newly simulated requests."""
        self._bar.advance(self._started(), requests)


class Steps(_Bar):
    """The number of finished steps and the current step."""

    def __init__(self, console: Console, quiet: bool = False):
        columns = (_bar(), MofNCompleteColumn(), TextColumn("{task.description}"), _Rate(), TimeRemainingColumn())
        super().__init__(console, quiet, *columns)

    def update(self, done: int, total: int, step: str) -> None:
        """Show the number of finished steps, their total, and the current step."""
        self._bar.update(self._started(), completed=done, total=total, description=step)


class Work(_Bar):
    """The steps of a command over the requests of a trace: the present step, the share of the work, and a rate.

    Work is requests times steps, and each step counts by the share of the time that it takes for a million requests.
    The step "read" advances with the bytes of the input files, and its rate is bytes per second. Later the rate is the
    requests times the share that is done, per second: that of the whole command, if it goes on so.
    """

    def __init__(self, console: Console, name: str, shares: Mapping[str, float], quiet: bool = False, files: int = 1):
        columns = (TextColumn("[bold]{task.description}"), _bar(), _Share(), _Rate(), _Remaining())
        super().__init__(console, quiet, *columns)
        self._name, self._shares, self._total, self._files = name, shares, sum(shares.values()), files
        self._step, self._done, self._bytes, self.requests = "", 0.0, 0, 0
        self._reads = reads_reported(None if self._bar.disable else self._read)

    def __enter__(self) -> Self:
        self._reads.__enter__()
        return self

    def __exit__(self, *error):
        self._reads.__exit__(*error)
        super().__exit__(*error)

    def step(self, name: str) -> None:
        """Finish the present step and begin another. A name without a share counts as no work."""
        self._done += self._shares.get(self._step, 0.0)
        self._step = name
        self._show(self._done, "requests", self.requests * self._done / self._total)

    def _read(self, size: int, total: int | None) -> None:
        """Count bytes that were read. Later passes over a file belong to other steps."""
        if self._step == "read" and total:
            self._bytes += size
            share = min(1.0, self._bytes / (total * self._files))
            self._show(self._done + share * self._shares.get("read", 0.0), "bytes", self._bytes)

    def _show(self, done: float, unit: str, count: float) -> None:
        task = self._started(self._name, self._total)
        elapsed = self._bar.tasks[task].elapsed or 0.0
        expected = elapsed * self._total / done if done else None
        rate = f"{short(count / elapsed)} {unit}/s" if elapsed and count else ""
        description = f"{self._name}: {self._step.replace('_', ' ')}"
        self._bar.update(task, completed=done, description=description, rate=rate, expected=expected)


def _bar() -> BarColumn:
    return BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=WIDTH, min_width=5))


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
