"""Coarser times: a release shows what a log would show whose clock has the profile's step.

A service time is the difference of two such clock readings, the start and the end of a request; a delay is the
difference of the reading when what a request waits for happens, and the reading when the request starts. So a start,
an end and a delay together reveal no instant more finely than a timestamp does, and the released times still agree:
start + service time + delay is the released start of the request that waits. Rounding each number by itself would
reveal more, because the sum of three rounded numbers narrows down what was rounded. Service time + delay keeps its
mean, and so does each of both over all phases of the clock; if the log's own clock shows whole steps, a service time
loses up to half a step on average, which the delay after it gains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..trace.columns import Columns, replace_columns
from ..trace.dependencies import COMPLETION
from ..trace.measured import numbers_of

DIGITS = 3  # of instants in ms: sums of times in seconds are equal to the microsecond


def step_times(columns: Columns, step_ms: int) -> Columns:
    """The columns with times rounded down to multiples of a step; rows keep their order.

    Service times, delays and measured times become the differences of instants that are rounded down likewise, so they
    are multiples of the step, too.

    >>> from kvtrace.trace.building import toy
    >>> step_times(toy("0", "1", "2", gap_ms=700.0), 1000).timestamp
    array([   0.,    0., 1000.])
    """
    waits = columns.dependencies
    if step_ms <= 1:
        return _without_noise(columns)
    time = columns.timestamp
    read = _clock(time, step_ms)
    changed: dict[str, Any] = {"timestamp": read}
    for name, values in durations_of(columns).items():
        changed[name] = _clock(time + values, step_ms) - read
    if waits is not None:
        request = waits.request
        happens = _clock(time[request] - waits.delay_ms, step_ms)  # what the request waits for
        changed["dependencies"] = replace(waits, delay_ms=read[request] - happens)
    return replace_columns(columns, **changed)


def durations_of(columns: Columns) -> dict[str, np.ndarray]:
    """The columns of measured times that start with a request, by name: service times and others.

    >>> from kvtrace.trace.building import toy
    >>> list(durations_of(replace_columns(toy("0"), cached_tokens=[1], ttft_ms=[2.5])))
    ['ttft_ms']
    """
    return {name: values for name, values in numbers_of(columns).items() if values.dtype == np.float64}


def finer_than(durations: np.ndarray, step_ms: int) -> np.ndarray:
    """Whether each duration is known and no multiple of a step; steps below 2 ms mean a microsecond.

    >>> finer_than(np.array([3000.0, 2500.0, np.nan]), 1000), finer_than(np.array([0.125, 0.12345]), 0)
    (array([False,  True, False]), array([False,  True]))
    """
    coarse = durations // step_ms * step_ms if step_ms > 1 else np.round(durations, DIGITS)
    return ~np.isnan(durations) & (durations != coarse)


def late_starts(columns: Columns) -> np.ndarray:
    """Rows whose dependencies give another start than their timestamp, by more than a microsecond.

    A request is only looked at if all that it waits for have known times: a completion needs a service time.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.dependencies import Dependencies
    >>> waits = Dependencies.of([[], [(0, "completion", "sequence", 400.0)]])
    >>> trace = replace_columns(toy("0", "1", gap_ms=1000.0), dependencies=waits, service_ms=[600.0, np.nan])
    >>> late_starts(trace), late_starts(replace_columns(trace, service_ms=[500.0, 1.0]))
    (array([], dtype=int64), array([1]))
    """
    waits, time = columns.dependencies, columns.timestamp
    if waits is None or not len(waits.row):
        return np.empty(0, dtype=np.int64)
    service = np.full(len(time), np.nan) if columns.service_ms is None else columns.service_ms
    happens = time[waits.row] + np.where(waits.trigger == COMPLETION, service[waits.row], 0.0)
    some = np.flatnonzero(np.diff(waits.offsets))
    start = np.maximum.reduceat(happens + waits.delay_ms, waits.offsets[some])  # NaN if one is unknown
    return some[np.abs(start - time[some]) > 10.0**-DIGITS]


def _without_noise(columns: Columns) -> Columns:
    """The columns with times to the microsecond that were measured: digits below it are noise of sums, or hide text."""
    waits, measured = columns.dependencies, durations_of(columns)
    if waits is None and not measured:
        return columns
    return replace_columns(
        columns, **{name: np.round(values, DIGITS) for name, values in measured.items()},
        dependencies=None if waits is None else replace(waits, delay_ms=np.round(waits.delay_ms, DIGITS)),
    )  # fmt: skip


def _clock(instant: np.ndarray, step_ms: int) -> np.ndarray:
    """The instants as a clock with this step shows them."""
    return np.round(instant, DIGITS) // step_ms * step_ms
