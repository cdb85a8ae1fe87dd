"""Progress of long runs on one line of stderr: the share of the work, its rate, and the time that remains.

Nothing is printed, and rich is not loaded, unless stderr is a terminal. Each class defines what counts as work.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from .._base.input_files import reads_reported
from .._base.step_work import work_reported
from .._base.units import short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

# Step -> its share of the time for a million requests of 24 blocks on average; steps of less than 1 % are left out.
REPORT = {
    "read": 17, "hit-curve": 19, "hits-over-time": 2, "requests": 1, "block-size": 25, "reuse": 5, "working-set": 7,
    "popularity": 3, "lengths": 4, "sessions": 17,
}  # fmt: skip
COMPARED = REPORT | {"read": 34, "compare": 60}  # of two traces
CHECKS = {"canonical": 8, "chains": 6, "anonymity": 6, "k_sharing": 6, "hidden_text": 2, "sidecar": 1}
RELEASE = {"read": 9, "coarsen": 37, "write": 9, "audit": 13} | CHECKS
AUDIT = {"read": 13} | CHECKS
ANALYZE, CURVE, COMPARE = {"read": 1, "count": 3}, {"read": 2, "curve": 1}, {"read": 2, "compare": 3}
CHECK, CONVERT, FIT = {"read": 1, "check": 4}, {"read": 1, "write": 1}, {"read": 1, "fit": 3}
CALIBRATE = {"sum": 3, "sum-request": 3, "max": 3, "worth": 2}
FINEST = 1e-3  # part of a step that is worth a new line: rows are reported one by one, too
STAGES = {"encode": 12, "gather": 80, "match": 68, "rank": 5, "resolve": 3, "finish": 5}
RELEASE_DATASET = STAGES | {"write": 8, "audit": 8} | CHECKS


def plan_shares(
    routers: int, *, tiers: bool, lanes: bool = False, pool: bool = False, disaggregate: bool = False
) -> dict[str, float]:
    """The shares of the parts of a plan: a router takes a fifth of the time of the changed assumptions."""
    parts = (("tiers", tiers), ("lanes", lanes), ("pool", pool), ("disaggregate", disaggregate))
    absent = {name for name, wanted in parts if not wanted}
    small = {
        "memory": 1,
        "tiers": 1,
        "instances": 10 * routers,
        "block_sizes": 0.3,
        "prices": 1,
        "lanes": 10,
        "disaggregate": 10,
        "loop": 1,
        "pool": 2,
    }
    return {name: share for name, share in small.items() if name not in absent} | {"sensitivity": 50}


class _Line:
    """A progress line; silent unless the console is a terminal."""

    counts: str  # what counts as work: a key of COLUMNS

    def __init__(self, console: Console, quiet: bool, name: str = ""):
        self._name = name
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if console.is_terminal and not quiet:
            from . import progress_columns

            self._bar = progress_columns.progress_line(console, progress_columns.COLUMNS[self.counts]())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_):
        if self._bar:
            self._bar.stop()

    def _show(self, **values: Any) -> None:
        """Change some values of the line. It has a thread, so it starts when it is needed: after workers are forked."""
        if self._bar is None:
            return
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=None, counts="")
        self._bar.update(self._task, **values)

    def _elapsed(self) -> float:
        """Seconds since the line started."""
        return 0.0 if self._bar is None or self._task is None else self._bar.tasks[self._task].elapsed or 0.0


class Bar(_Line):
    """The progress over the bytes of the input, and bytes per second."""

    counts = "bytes"

    def __init__(self, console: Console, quiet: bool = False, name: str = "anonymizing"):
        super().__init__(console, quiet, name)

    def update(self, progress) -> None:
        """Show `done` and `total` bytes, and the `requests` and `tokens` so far."""
        counts = f"{short(progress.requests)} requests, {short(progress.tokens)} tokens"
        self._show(completed=progress.done, total=progress.total or None, counts=counts)


class RequestProgress(_Line):
    """Progress over requests: drawn ones, or simulated ones (those of the trace times the number of simulations)."""

    counts = "requests"

    def __init__(self, console: Console, quiet: bool = False, name: str = "simulating"):
        super().__init__(console, quiet, name)

    def expect(self, requests: int) -> None:
        """Set the total number of requests."""
        self._show(total=requests)

    def update(self, requests: int) -> None:
        """Add newly simulated requests."""
        self._show(advance=requests)


class Steps(_Line):
    """The number of finished steps and the current step."""

    counts = "steps"

    def __init__(self, console: Console, quiet: bool = False):
        super().__init__(console, quiet)

    def update(self, finished: int, total: int, step: str) -> None:
        """Show the number of finished steps, their total, and the current step."""
        self._show(completed=finished, total=total, description=step)


class Work(_Line):
    """The steps of a command over the requests of a trace: the present step, the share of the work, and a rate.

    Work is requests times steps, and each step counts by the share of the time that it takes for a million requests.
    The step "read" advances with the bytes of the input files, and its rate is bytes per second. The other steps
    advance with `report_work`. Later the rate is that of the simulated requests, if there are any. Otherwise it is the
    requests times the share that is done, per second: that of the whole command, if it goes on so.
    """

    counts = "shares"

    def __init__(self, console: Console, name: str, shares: Mapping[str, float], quiet: bool = False, files: int = 1):
        super().__init__(console, quiet, name)
        self._shares, self._total, self._files = shares, sum(shares.values()), files
        self._step, self._done = "", 0.0  # share of the finished steps
        self._part = self._drawn = 0.0  # of the present step
        self._bytes, self.requests, self._simulated = 0, 0, 0
        self._reports = ExitStack()

    def __enter__(self) -> Self:
        if self._bar:
            self._reports.enter_context(reads_reported(self._read))
            self._reports.enter_context(work_reported(self._advance))
        return self

    def __exit__(self, *error):
        self._reports.close()
        super().__exit__(*error)

    def step(self, name: str, requests: int | None = None) -> None:
        """Finish the present step and begin another, of `requests` requests if their number is known only now.

        A name without a share counts as no work.
        """
        self.requests = self.requests if requests is None else requests
        self._done += self._shares.get(self._step, 0.0)
        self._step, self._part = name, 0.0
        self._draw()

    def _read(self, size: int, total: int | None) -> None:
        """Count bytes that were read. Later passes over a file belong to other steps."""
        if self._step == "read" and total:
            self._bytes += size
            self._part = min(1.0, self._bytes / (total * self._files))
            self._draw()

    def _advance(self, amount: float, of: float | None, requests: int) -> None:
        """Count work of the present step; the unit is requests if all of it is not given."""
        self._simulated += requests
        total = of or self.requests
        if total:
            self._part = min(1.0, self._part + amount / total)
            if self._part == 1 or self._part - self._drawn >= FINEST:
                self._draw()

    def _draw(self) -> None:
        self._drawn = self._part
        share, elapsed = self._done + self._part * self._shares.get(self._step, 0.0), self._elapsed()
        expected = elapsed * self._total / share if share else None
        description = f"{self._name}: {self._step.replace('_', ' ')}"
        rate = self._rate(share, elapsed)
        self._show(completed=share, total=self._total, description=description, rate=rate, expected=expected)

    def _rate(self, share: float, elapsed: float) -> str:
        unit, count = "requests", self._simulated or self.requests * share / self._total
        if self._bytes and self._step == "read":
            unit, count = "bytes", self._bytes
        return f"{short(count / elapsed)} {unit}/s" if elapsed and count else ""
