"""Latencies of requests, simulated beside measured: errors of their statistics, with bootstrap intervals.

Requests that arrive together wait together, so single requests are not independent. The bootstrap draws windows of
consecutive requests instead (a block bootstrap, after Carlstein 1986).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .._base.results import Described, column
from .._base.tables import number

WINDOWS = 50  # of consecutive requests, of equal number
REPLICATES = 200
BINS = 2048  # of values; a sample of more values is rounded to these quantiles
INTERVAL = (0.05, 0.95)  # of the replicates


def quantile_interval(values: np.ndarray, quantile: float, *, seed: int = 0) -> tuple[float, float]:
    """The interval that holds 90 % of the bootstrap replicates of a quantile.

    Args:
        values: One value a request, in order of arrival.
        quantile: From 0 to 1.
        seed: Of the draws.

    Returns:
        The 5 % and the 95 % quantile of the replicates; zeros without values.

    >>> quantile_interval(np.full(100, 3.0), 0.9)
    (3.0, 3.0)
    """
    if not len(values):
        return 0.0, 0.0
    edges = np.unique(values)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS), method="higher"))
    which = np.searchsorted(edges, values)  # request -> the bin whose upper edge is its value, or just above it
    windows = min(WINDOWS, len(values))
    window = np.arange(len(values)) * windows // len(values)
    counts = np.bincount(window * len(edges) + which, minlength=windows * len(edges)).reshape(windows, len(edges))
    draws = np.random.default_rng(seed).multinomial(windows, np.full(windows, 1 / windows), size=REPLICATES)
    up_to = np.ascontiguousarray(counts.cumsum(axis=1).T)  # bin, window -> values up to the bin
    goal = quantile * (draws @ up_to[-1])
    place, last = np.zeros(REPLICATES, int), np.full(REPLICATES, len(edges) - 1)
    while (place < last).any():  # in halves: a product of whole tables would wake the threads of BLAS, which spin
        middle = (place + last) // 2
        reached = np.einsum("rw,rw->r", draws, up_to[middle]) >= goal
        place, last = np.where(reached, place, middle + 1), np.where(reached, middle, last)
    low, high = np.quantile(edges[place], INTERVAL)
    return float(low), float(high)


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.nanmean,
    **{f"p{percent}": partial(np.nanquantile, q=percent / 100) for percent in (50, 90, 95, 99)},
}
TARGETS = (("ttft_s", "mean"), ("ttft_s", "p50"), ("ttft_s", "p90"), ("tpot_s", "mean"), ("e2e_s", "mean"))


@dataclass(frozen=True, eq=False)
class Latencies:
    """One value per request, in seconds; NaN where a request was rejected or has a single output token."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    e2e_s: np.ndarray

    @classmethod
    def of(cls, arrival: np.ndarray, first: np.ndarray, ended: np.ndarray, output: np.ndarray) -> Latencies:
        """The latencies of requests with these times.

        >>> times = [np.array([one]) for one in (1.0, 2.0, 6.0)]
        >>> Latencies.of(*times, np.array([5])).tpot_s.tolist()
        [1.0]
        """
        following = np.where(output > 1, output - 1, np.nan)
        return cls(first - arrival, (ended - first) / following, ended - arrival)

    def take(self, rows: np.ndarray) -> Latencies:
        """The latencies of some requests."""
        return Latencies(self.ttft_s[rows], self.tpot_s[rows], self.e2e_s[rows])


def signed(share: float) -> str:
    """An error in percent, with its sign.

    >>> signed(0.0335), signed(-0.00004)
    ('+3.4 %', '0.0 %')
    """
    text = f"{100 * share:+,.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def signed_range(shares: list[float | None]) -> str:
    """The interval of an error in percent; None is not known.

    >>> signed_range([-0.1, 0.02]), signed_range([None, None])
    ('-10.0 % to +2.0 %', '-')
    """
    return " to ".join(signed(share) for share in shares if share is not None) or "-"


@dataclass(frozen=True)
class StatisticError(Described):
    """A statistic of a latency: measured, simulated, and the relative error with the interval of its noise."""

    latency: str = field(metadata=column(rank=0))  # ttft_s, tpot_s or e2e_s
    statistic: str = field(metadata=column("statistic", rank=0))
    measured: float = field(metadata=column("measured", number))  # seconds
    simulated: float = field(metadata=column("simulated", number))  # seconds
    low: float = field(metadata=column(hidden=True))  # the 5 % quantile of the error's bootstrap replicates
    high: float = field(metadata=column(hidden=True))  # the 95 % quantile

    @property
    @column("error", signed)
    def error(self) -> float:
        """The simulated value as a share of the measured one, less 1."""
        return self.simulated / self.measured - 1

    @property
    @column("90 % interval", signed_range)
    def interval(self) -> list[float]:
        """The interval of the error's noise."""
        return [self.low, self.high]


def errors_of(
    measured: Latencies,
    simulated: Latencies,
    pairs: tuple[tuple[str, str], ...] = TARGETS,
    *,
    seed: int = 0,
    intervals: bool = True,
) -> list[StatisticError]:
    """The errors of statistics; both have the same requests, in order of arrival.

    Args:
        measured: What was measured.
        simulated: What was simulated.
        pairs: The names of a latency and of a statistic.
        seed: Of the bootstrap.
        intervals: Whether the bootstrap is run, which takes most of the time; without it the intervals are nan.

    >>> one = Latencies(*[np.arange(1.0, 51.0)] * 3)
    >>> twice = Latencies(*[np.arange(2.0, 101.0, 2)] * 3)
    >>> [(round(error.error, 9), error.low, error.high) for error in errors_of(one, twice)][:2]
    [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)]
    """
    draws = _draws(len(measured.ttft_s), seed) if intervals else []
    return [
        _error_of(latency, name, getattr(measured, latency), getattr(simulated, latency), draws)
        for latency, name in pairs
    ]


def mean_error(errors: list[StatisticError]) -> float:
    """The mean of the absolute errors."""
    return float(np.nanmean([abs(error.error) for error in errors]))


def _error_of(latency: str, name: str, measured: np.ndarray, simulated: np.ndarray, draws) -> StatisticError:
    both = ~(np.isnan(measured) | np.isnan(simulated))
    if not both.any():  # each request has one output token
        return StatisticError(latency, name, np.nan, np.nan, np.nan, np.nan)
    measured, simulated = np.where(both, measured, np.nan), np.where(both, simulated, np.nan)
    statistic = STATISTICS[name]
    drawn = [rows for rows in draws if both[rows].any()]
    ratios = [statistic(simulated[rows]) / statistic(measured[rows]) - 1 for rows in drawn]
    low, high = np.quantile(ratios, INTERVAL) if ratios else (np.nan, np.nan)
    return StatisticError(
        latency, name, float(statistic(measured)), float(statistic(simulated)), float(low), float(high)
    )


def _draws(rows: int, seed: int) -> list[np.ndarray]:
    """The rows of each replicate: windows of consecutive requests, drawn with replacement."""
    windows = np.array_split(np.arange(rows), min(WINDOWS, rows))
    random = np.random.default_rng(seed)
    return [
        np.concatenate([windows[window] for window in random.integers(len(windows), size=len(windows))])
        for _ in range(REPLICATES)
    ]
