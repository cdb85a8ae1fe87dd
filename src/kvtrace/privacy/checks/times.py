"""Check 9: times count from the first request, no finer than the profile says; the calendar is nobody's business."""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, failed, passed, warned
from .marks import is_epoch

REMEDY = "`kvtrace release` counts times from 0 and rounds them down to the profile's steps."


def check(there: Evidence) -> Finding:
    """Where times begin, in which steps they go, and whether rows stand in their order."""
    time, step = there.columns.timestamp, there.profile.time_step_ms
    if not np.isfinite(time).all():
        bad = np.flatnonzero(~np.isfinite(time))
        told = f"{len(bad):,} times are not finite, the first on line {there.line(bad[0]):,}."
        return failed({"not_finite": len(bad)}, told, "Mend the rows.")
    since = time - time.min()
    finer = int((since % step != 0).sum()) if step > 1 else 0
    figure = {
        "epoch": is_epoch(float(there.fields["timestamp"].min())), "first_is_0": bool(time[0] == 0),
        "resolution_ms": resolution(since), "step_ms": step, "finer_than_step": finer,
        "out_of_order": int((np.diff(time) < 0).sum()),
    }  # fmt: skip
    if figure["epoch"]:
        return failed(
            figure, "times are those of a calendar, counted since 1970: they tell when each request was.", REMEDY
        )
    if finer:
        return failed(figure, f"{finer:,} times are finer than steps of {step:,} ms.", REMEDY)
    if not figure["first_is_0"]:
        return warned(figure, "the first time is not 0: it may count from something outside.", REMEDY)
    if figure["out_of_order"]:
        return warned(figure, "rows are not in the order of time: theirs may be that of the log.", "Sort them by time.")
    return passed(figure, f"times count from the first request, in steps of {_words(figure['resolution_ms'])}.")


def resolution(since: np.ndarray) -> float | None:
    """The largest step in ms that all times are multiples of; less than 1 where one is a fraction, None if all are 0.

    >>> resolution(np.array([0.0, 3000.0, 12000.0])), resolution(np.array([0.0, 0.5]))
    (3000.0, 0.5)
    """
    for unit in (1.0, 1e3, 1e6):
        whole = since * unit
        if (whole == np.floor(whole)).all() and whole.max() < 2**53:
            step = int(np.gcd.reduce(whole.astype(np.int64)))
            return step / unit if step else None
    return 0.0


def _words(resolution_ms) -> str:
    return "none, for all are one" if resolution_ms is None else f"{resolution_ms:,g} ms"
