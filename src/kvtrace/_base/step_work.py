"""The work of the present step, reported while it is done; without a listener the reports go nowhere.

A step that takes seconds calls `report_work`. A command that shows progress listens with `work_reported`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OnWork = Callable[[float, float | None, int], None]  # receives work done, the work of the step or None, and requests
_on_work: ContextVar[OnWork | None] = ContextVar("_on_work", default=None)


def report_work(work: float, of: float | None = None, *, requests: int = 0) -> None:
    """Report that work of the present step was done.

    Args:
        work: The work since the last report, in any unit.
        of: All work of the step in the same unit; None if the unit is requests and the listener knows their number.
        requests: Requests that a simulation has served for it.
    """
    if on_work := _on_work.get():
        on_work(work, of, requests)


@contextmanager
def work_reported(on_work: OnWork | None) -> Iterator[None]:
    """Send the reports of this thread to a listener.

    >>> reports = []
    >>> with work_reported(lambda *report: reports.append(report)):
    ...     report_work(1, 4)
    >>> reports
    [(1, 4, 0)]
    """
    token = _on_work.set(on_work)
    try:
        yield
    finally:
        _on_work.reset(token)


@contextmanager
def part_of_work(share: float, expected: float) -> Iterator[None]:
    """Work that comes to `share` of the present step at its end, whatever the reports in it come to.

    Args:
        share: Its share of the step, from 0 to 1.
        expected: An estimate of its work, in the unit of its reports.

    >>> reports = []
    >>> with work_reported(lambda work, of, requests: reports.append(work)), part_of_work(0.5, expected=4):
    ...     report_work(1)
    ...     report_work(7)
    >>> reports
    [0.125, 0.375, 0.0]
    """
    outer, left = _on_work.get(), share

    def report(work: float, of: float | None, requests: int) -> None:
        nonlocal left
        part = min(left, share * work / (of or expected))
        left -= part
        if outer:
            outer(part, 1.0, requests)

    with work_reported(report):
        yield
    report(left, share, 0)
