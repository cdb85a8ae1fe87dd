"""Progress bars for long runs: share, rate and remaining time, on a terminal only."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class _Bar:
    """A bar with some columns; silent unless the console is a terminal."""

    def __init__(self, console: Console, quiet: bool, *columns: ProgressColumn):
        self._bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def _started(self, name: str = "", total: int | None = None, **fields: Any) -> TaskID:
        """The task of the bar. The bar has a thread, so it starts when it is needed: after workers are forked."""
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(name, total=total, **fields)
        return self._task


class Bar(_Bar):
    """The progress over the bytes of the input."""

    def __init__(self, console: Console, quiet: bool = False):
        super().__init__(
            console, quiet, TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(),
            TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[counts]}"),
        )  # fmt: skip

    def update(self, progress) -> None:
        """Show `done` and `total` bytes, and the `requests` and `tokens` so far."""
        task = self._started("anonymizing", progress.total or None, counts="")
        counts = f"{progress.requests:,} requests, {progress.tokens:,} tokens"
        self._bar.update(task, completed=progress.done, counts=counts)


class RequestProgress(_Bar):
    """The number of simulated requests."""

    def __init__(self, console: Console, quiet: bool = False):
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("requests"), TimeRemainingColumn())
        super().__init__(console, quiet, TextColumn("[bold]simulating"), *columns)

    def expect(self, requests: int) -> None:
        """Set the total number of requests."""
        self._bar.update(self._started(), total=requests)

    def update(self, requests: int) -> None:
        """Add newly simulated requests."""
        self._bar.advance(self._started(), requests)


class Steps(_Bar):
    """The number of finished steps and the current step."""

    def __init__(self, console: Console, quiet: bool = False):
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        super().__init__(console, quiet, *columns)

    def update(self, done: int, total: int, step: str) -> None:
        """Show the number of finished steps, their total, and the current step."""
        self._bar.update(self._started(), completed=done, total=total, description=step)
