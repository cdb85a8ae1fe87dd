"""Arrival statistics: rate, gaps, burstiness, and the mean number of concurrent requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .._base.results import DescribedResult, column
from .._base.tables import number
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, knows
from .distribution import Distribution

WINDOWS_S = (1, 10, 60)


@dataclass(frozen=True, repr=False)
class Arrivals(DescribedResult):
    """Arrival statistics of a trace."""

    duration_ms: float
    requests_per_second: float | None
    prompt_tokens_per_second: float | None
    gap_ms: Distribution  # between one arrival and the next
    gap_cv: float | None  # standard deviation / mean of the gaps: 1 for a Poisson process
    dispersion: dict[int, float | None] = field(  # window in s -> variance / mean of its requests: 1 for Poisson
        metadata=column(value=lambda windows: {f"{window}s": value for window, value in windows.items()})
    )
    ms_per_token: float  # decode time of an output token, an assumption of `concurrency`
    concurrency: float | None  # mean number of active requests at that decode speed (Little's law); None if unknown

    def _headline(self) -> str:
        rates = {"requests_per_second": self.requests_per_second, "gap_cv": self.gap_cv}
        values = (f"{name}={number(value)}" for name, value in rates.items())
        return ", ".join([f"duration_s={self.duration_ms / 1000:,.6g}", *values])


def arrival_statistics(trace: Trace, *, ms_per_token: float = 30.0, quantiles: Sequence[float] = ()) -> Arrivals:
    """Compute the arrival statistics. Rates are None if all requests arrive at the same time.

    >>> from kvtrace.trace.building import toy
    >>> arrival_statistics(toy("0", "1", "2", gap_ms=500)).gap_ms.mean
    500.0
    """
    gaps, duration = np.diff(trace.timestamp), float(trace.timestamp[-1]) if len(trace) else 0.0
    gap = Distribution.of(gaps, quantiles)
    busy_ms = float(trace.output_length.sum()) * ms_per_token if knows(trace, trace.meta, OUTPUTS) else None
    return Arrivals(
        duration_ms=duration,
        requests_per_second=len(trace) / duration * 1000 if duration else None,
        prompt_tokens_per_second=float(trace.input_length.sum()) / duration * 1000 if duration else None,
        gap_ms=gap,
        gap_cv=gap.std / gap.mean if gap.mean and gap.std is not None else None,
        dispersion={window: dispersion(trace.timestamp, window * 1000) for window in WINDOWS_S},
        ms_per_token=ms_per_token,
        concurrency=busy_ms / duration if duration and busy_ms is not None else None,
    )


def dispersion(timestamp: np.ndarray, window_ms: float) -> float | None:
    """Variance / mean of the number of requests in each whole window; None for fewer than two whole windows.

    >>> dispersion(np.array([0.0, 10.0, 1010.0, 2500.0]), 1000)
    0.16666666666666666
    """
    windows = int(timestamp[-1] // window_ms) if len(timestamp) else 0  # whole windows only
    if windows < 2:
        return None
    # only windows that have requests: a single late time can make billions of empty ones
    number, counts = np.unique(timestamp // window_ms, return_counts=True)
    counts = counts[number < windows]
    mean = float(counts.sum()) / windows
    spread = float(((counts - mean) ** 2).sum()) + (windows - len(counts)) * mean**2
    return spread / windows / mean if mean else None
