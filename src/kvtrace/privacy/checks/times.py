"""Three checks of times: times, durations, measured.

* times: times count from the first request, no finer than the profile allows. The calendar is not published.
* durations: service times and delays are no finer than the times, and agree with them, so they can hold no message.
* measured: what the service measured is there only where it is kept by name, and no finer than the profile states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...trace.columns import MEASURED, measured_of
from ..allowed_values import is_epoch
from ..profiles import kept_measured
from ..steps import cached_step, finer_than, late_starts
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

REMEDY = "`kvtrace release` counts times from 0 and rounds them down to the profile's time step."


def check_times(evidence: Evidence) -> Finding:
    """Check the start of the times, their resolution, and the order of the rows."""
    time, step = evidence.columns.timestamp, evidence.profile.time_step_ms
    if not np.isfinite(time).all():
        bad = np.flatnonzero(~np.isfinite(time))
        sentence = f"{len(bad):,} times are not finite, the first on line {evidence.line(bad[0]):,}."
        return failed({"not_finite": len(bad)}, sentence, "Fix the rows.")
    since = time - time.min()
    finer = int((since % step != 0).sum()) if step > 1 else int(finer_than(time, step).sum())
    figure = {
        "epoch": is_epoch(float(evidence.fields["timestamp"].min())), "first_is_0": bool(time[0] == 0),
        "resolution_ms": resolution(since), "step_ms": step, "finer_than_step": finer,
        "out_of_order": int((np.diff(time) < 0).sum()),
    }  # fmt: skip
    if figure["epoch"]:
        return failed(figure, "times count from 1970: they reveal the date and time of each request.", REMEDY)
    if finer:
        limit = f"finer than the profile's time step of {step:,} ms" if step > 1 else "finer than a microsecond"
        return failed(figure, f"{finer:,} times are {limit}.", REMEDY)
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


DURATION_REMEDY = "`kvtrace release` takes service times and delays from times that it has rounded down."


def check_durations(evidence: Evidence) -> Finding:
    """Compare the resolution of service times and delays with the profile's step, and the starts that they give."""
    columns, step = evidence.columns, evidence.profile.time_step_ms
    waits = columns.dependencies
    service = np.empty(0) if columns.service_ms is None else columns.service_ms
    delay = np.empty(0) if waits is None else waits.delay_ms
    figure: dict[str, Any] = {
        "service_times": int((~np.isnan(service)).sum()), "delays": len(delay), "step_ms": step,
        "service_times_finer": int(finer_than(service, step).sum()), "delays_finer": int(finer_than(delay, step).sum()),
        "other_starts": len(late_starts(columns)), "several_delays": 0 if waits is None else _several(waits),
    }  # fmt: skip
    if not figure["service_times"] and waits is None:
        return passed(figure, "no row has a service time or a delay.")
    if finer := figure["service_times_finer"] + figure["delays_finer"]:
        if step > 1:
            sentence = f"{finer:,} service times and delays are finer than the profile's time step of {step:,} ms."
            return failed(figure, sentence, DURATION_REMEDY)
        sentence = f"{finer:,} service times and delays have digits below a microsecond, which can hide text."
        return failed(figure, sentence, DURATION_REMEDY)
    if figure["other_starts"] or figure["several_delays"]:
        return warned(
            figure,
            f"{figure['other_starts']:,} requests start at another time than what they wait for gives, and "
            f"{figure['several_delays']:,} have several delays: such delays can be chosen freely, and so hide text.",
            "Compare the trace with its log.",
        )
    sentence = "service times and delays agree with the times" + (f", in steps of {step:,} ms." if step > 1 else ".")
    return passed(figure, sentence)


def _several(waits) -> int:
    """The number of requests whose dependencies have different delays."""
    some = np.flatnonzero(np.diff(waits.offsets))
    starts = waits.offsets[some]
    if not len(some):
        return 0
    return int((np.maximum.reduceat(waits.delay_ms, starts) != np.minimum.reduceat(waits.delay_ms, starts)).sum())


MEASURED_REMEDY = (
    "`kvtrace release` leaves them out, or keeps by name what should be published (--keep-measured NAMES)."
)
COARSEN = "`kvtrace release` rounds measured numbers down as it does times and input lengths."


def check_measured(evidence: Evidence) -> Finding:
    """Look for measured columns that nobody named, and for numbers that are wrong or finer than the profile states."""
    columns = measured_of(evidence.columns)
    unnamed = [name for name in columns if name not in _named(evidence)]
    figure: dict[str, Any] = {
        "measured_columns": list(columns), "measured_not_named": unnamed,
        "measured_wrong": _count(evidence, _wrong), "measured_finer": _count(evidence, _finer),
    }  # fmt: skip
    if not columns:
        return passed(figure, "no row states what the service measured.")
    listed = ", ".join(columns)
    if unnamed:
        sentence = f"rows state what the service measured: {', '.join(unnamed)}. They tell which prompts were cached."
        return failed(figure, sentence, MEASURED_REMEDY)
    if wrong := figure["measured_wrong"]:
        return failed(
            figure, f"{wrong:,} measured numbers are no durations, or no tokens of their prompts.", MEASURED_REMEDY
        )
    step = evidence.profile.time_step_ms
    if finer := figure["measured_finer"]:
        if step > 1 or evidence.profile.round_input != "exact":
            sentence = f"{finer:,} measured numbers are finer than the profile's times and input lengths."
            return failed(figure, sentence, COARSEN)
        return failed(
            figure, f"{finer:,} measured times have digits below a microsecond, which can hide text.", COARSEN
        )
    sentence = f"rows state, as asked for by name, {listed}: others learn how fast each request was served, or what "
    return warned(figure, f"{sentence}the service had of it in its cache.", MEASURED_REMEDY)


def _named(evidence: Evidence) -> set[str]:
    """The columns that the caller or the sidecar names; a trace that is graded as exact has them all."""
    declared = () if evidence.declared is None else evidence.declared.keep_measured or ()
    return {*evidence.allowed_measured, *declared, *kept_measured(evidence.profile)}


def _count(evidence: Evidence, are) -> int:
    """The number of measured numbers of a kind."""
    return sum(int(are(evidence, name, values).sum()) for name, values in measured_of(evidence.columns).items())


def _wrong(evidence: Evidence, name: str, values: np.ndarray) -> np.ndarray:
    return MEASURED[name].is_wrong(values, evidence.columns.input_length)


def _finer(evidence: Evidence, name: str, values: np.ndarray) -> np.ndarray:
    if name != "cached_tokens":
        return finer_than(values, evidence.profile.time_step_ms)
    step = cached_step(evidence.profile.round_input, evidence.block_size or 1)
    return MEASURED[name].is_known(values) & (values % step != 0)
