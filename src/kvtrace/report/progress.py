"""A progress bar for long work: share, rate and remaining time, on a terminal only."""

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
    """Shows how far a run over some bytes of input has come; silent where the console is no terminal."""

    def __init__(self, console: Console, quiet: bool = False):
        self._bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[said]}"), console=console, transient=True,
            disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def update(self, progress) -> None:
        """Show a new state: `done` and `total` bytes, `requests` and `tokens` so far."""
        if self._task is None:  # begun here, after the workers were forked: the bar has a thread
            self._bar.start()
            self._task = self._bar.add_task("anonymizing", total=progress.total or None, said="")
        said = f"{progress.requests:,} requests, {progress.tokens:,} tokens"
        self._bar.update(self._task, completed=progress.done, said=said)


class Requests:
    """Shows how many requests simulations have served; silent where the console is no terminal."""

    def __init__(self, console: Console, quiet: bool = False):
        self._bar = Progress(
            TextColumn("[bold]simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"),
            TimeRemainingColumn(), console=console, transient=True, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Requests:
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def expect(self, requests: int) -> None:
        """Say how many there are in all."""
        self._bar.update(self._task, total=requests)

    def update(self, requests: int) -> None:
        """So many more were served."""
        self._bar.advance(self._task, requests)


class Steps:
    """Shows how many steps of some work are done and what it is doing; silent where the console is no terminal."""

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

    def update(self, done: int, total: int, doing: str) -> None:
        """So many steps of all are done, and what comes now."""
        self._bar.update(self._task, completed=done, total=total, description=doing)
