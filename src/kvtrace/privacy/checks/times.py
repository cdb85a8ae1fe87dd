"""times: times count from the first request, no finer than the profile allows. The calendar is not published."""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, failed, passed, warned
from .marks import is_epoch

REMEDY = "`kvtrace release` counts times from 0 and rounds them down to the profile's time step."


def check(evidence: Evidence) -> Finding:
    """Check the start of the times, their resolution, and the order of the rows."""
    time, step = evidence.columns.timestamp, evidence.profile.time_step_ms
    if not np.isfinite(time).all():
        bad = np.flatnonzero(~np.isfinite(time))
        sentence = f"{len(bad):,} times are not finite, the first on line {evidence.line(bad[0]):,}."
        return failed({"not_finite": len(bad)}, sentence, "Fix the rows.")
    since = time - time.min()
    finer = int((since % step != 0).sum()) if step > 1 else 0
    figure = {
        "epoch": is_epoch(float(evidence.fields["timestamp"].min())), "first_is_0": bool(time[0] == 0),
        "resolution_ms": resolution(since), "step_ms": step, "finer_than_step": finer,
        "out_of_order": int((np.diff(time) < 0).sum()),
    }  # fmt: skip
    if figure["epoch"]:
        return failed(figure, "times count from 1970: they reveal the date and time of each request.", REMEDY)
    if finer:
        return failed(figure, f"{finer:,} times are finer than the profile's time step of {step:,} ms.", REMEDY)
    reject = failed if evidence.profile.coarsens else warned
    if not figure["first_is_0"]:
        return reject(figure, "the first time is not 0: times may count from an event outside the trace.", REMEDY)
    if figure["out_of_order"]:
        return reject(
            figure, "rows are not in order of time: their order may be that of the log.", "Sort the rows by time."
        )
    return passed(figure, f"times count from the first request, in steps of {_resolution_text(figure)}.")


def resolution(since: np.ndarray) -> float | None:
    """The largest step in ms that divides all times: less than 1 for fractions, None if all times are 0.

    >>> resolution(np.array([0.0, 3000.0, 12000.0])), resolution(np.array([0.0, 0.5]))
    (3000.0, 0.5)
    """
    for unit in (1.0, 1e3, 1e6):
        whole = since * unit
        if (whole == np.floor(whole)).all() and whole.max() < 2**53:
            step = int(np.gcd.reduce(whole.astype(np.int64)))
            return step / unit if step else None
    return 0.0


def _resolution_text(figure) -> str:
    resolution_ms = figure["resolution_ms"]
    return "0 ms (all times are equal)" if resolution_ms is None else f"{resolution_ms:,g} ms"
