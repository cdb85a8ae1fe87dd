"""Progress bars for long runs: share, rate and remaining time, on a terminal only."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Bar:
    """The progress over the bytes of the input; silent unless the console is a terminal."""

    def __init__(self, console: Console, quiet: bool = False):
        self._bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[counts]}"), console=console, transient=True,
            disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def update(self, progress) -> None:
        """Show `done` and `total` bytes, and the `requests` and `tokens` so far."""
        if self._task is None:  # the bar has a thread, so it starts after the workers are forked
            self._bar.start()
            self._task = self._bar.add_task("anonymizing", total=progress.total or None, counts="")
        counts = f"{progress.requests:,} requests, {progress.tokens:,} tokens"
        self._bar.update(self._task, completed=progress.done, counts=counts)


class RequestProgress:
    """The number of simulated requests; silent unless the console is a terminal."""

    def __init__(self, console: Console, quiet: bool = False):
        self._bar = Progress(
            TextColumn("[bold]simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"),
            TimeRemainingColumn(), console=console, transient=True, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> RequestProgress:
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def expect(self, requests: int) -> None:
        """Set the total number of requests."""
        self._bar.update(self._task, total=requests)

    def update(self, requests: int) -> None:
        """Add newly simulated requests."""
        self._bar.advance(self._task, requests)


class Steps:
    """The number of finished steps and the current step; silent unless the console is a terminal."""

    def __init__(self, console: Console, quiet: bool = False):
        self._bar = Progress(
            BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"), console=console,
            transient=True, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def update(self, done: int, total: int, step: str) -> None:
        """Show the number of finished steps, their total, and the current step."""
        self._bar.update(self._task, completed=done, total=total, description=step)
