"""durations: service times and delays are no finer than the times, and agree with them, so they can hold no message."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..timing import finer_than, late_starts
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

REMEDY = "`kvtrace release` takes service times and delays from times that it has rounded down."


def check(evidence: Evidence) -> Finding:
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
            return failed(figure, sentence, REMEDY)
        sentence = f"{finer:,} service times and delays have digits below a microsecond, which can hide text."
        return warned(figure, sentence, REMEDY)
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
