"""Arrivals of clients: processes at a rate of one, at the times when a flow of expected requests reaches their counts.

Arrivals at a rate that changes are arrivals at a rate of one, at other times: u, a count of requests, becomes the time
at which the flow reaches u (the time-rescaling theorem of point processes). So the bursts of a client, its drift and a
profile of the day are kept apart.

Two processes: the arrivals of a model, which keep its bursts (a clock gives times, and its own flow makes counts of
them), and renewals with gamma gaps, ServeGen's model of a client with bursts of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .._base.arrays import offsets_of
from .arrival_times import ArrivalClock

if TYPE_CHECKING:
    from .arrival_times import Pace
    from .attach_model import Model
    from .tree import Tree


@dataclass(frozen=True, eq=False)
class Flow:
    """The expected number of requests until each time of a period, which is repeated for ever.

    >>> flow = Flow(np.array([0.0, 1000.0, 3000.0]), np.array([0.0, 10.0, 10.0]))  # 10 requests/s, then a pause
    >>> flow.count_at(np.array([500.0, 2000.0, 3500.0])).tolist()
    [5.0, 10.0, 15.0]
    >>> flow.time_at(np.array([5.0, 10.0, 15.0])).tolist()
    [500.0, 3000.0, 3500.0]
    """

    time_ms: np.ndarray  # knots, from 0 to the period, never falling
    count: np.ndarray  # expected requests until each knot, from 0, never falling; linear between knots

    @classmethod
    def of_pace(cls, pace: Pace) -> Flow:
        """The flow of a fitted model: its rate by windows of about 50 requests."""
        return cls(offsets_of(pace.duration) / 1000, offsets_of(pace.rows).astype(np.float64))

    @property
    def period_ms(self) -> float:
        """Length of the period."""
        return float(self.time_ms[-1])

    @property
    def rate(self) -> float:
        """Mean requests per ms; infinite if all arrive together."""
        return float(self.count[-1]) / self.period_ms if self.period_ms else np.inf

    def times(self, factor: float) -> Flow:
        """The same flow with `factor` times the requests at each time."""
        return Flow(self.time_ms, self.count * factor)

    def count_at(self, time_ms: np.ndarray) -> np.ndarray:
        """The expected number of requests until some times."""
        return _repeated(time_ms, self.time_ms, self.count)

    def time_at(self, count: np.ndarray) -> np.ndarray:
        """The times at which the expected number of requests exceeds some counts, in ms."""
        return _repeated(count, self.count, self.time_ms)


def _repeated(at, knots, values):
    """A function that is linear between its knots, and grows by values[-1] with each period of knots[-1]."""
    lap, rest = np.divmod(at, knots[-1])
    place = np.minimum(np.searchsorted(knots, rest, side="right"), len(knots) - 1) - 1  # skips jumps
    share = (rest - knots[place]) / np.maximum(knots[place + 1] - knots[place], np.finfo(float).tiny)
    return lap * values[-1] + values[place] + np.minimum(share, 1.0) * (values[place + 1] - values[place])


Counts = Callable[[int], np.ndarray]  # number of requests, at least 1 -> their arrival times at a mean rate of 1

FEWEST, MOST = 64, 1 << 20  # arrivals drawn at a time
ROUNDING = 1e-9  # of factors
LONGER = 1.1  # how much further processes are followed if they have too few arrivals


class GapClock:
    """Endless arrival times of a tree model, whose gaps are independent.

    >>> from kvtrace.synthesis.tree import fit_tree
    >>> from kvtrace.trace.building import toy
    >>> GapClock(fit_tree(toy("0", "0 1", gap_ms=5)), np.random.default_rng(1)).take(3)
    array([ 5., 10., 15.])
    """

    def __init__(self, tree: Tree, rng: np.random.Generator):
        self._tree, self._rng, self._now, self._ready = tree, rng, 0.0, np.empty(0)

    def take(self, rows: int) -> np.ndarray:
        """The next arrival times, in ms."""
        while len(self._ready) < rows:
            times = self._now + np.cumsum(self._rng.choice(self._tree.gap_ms, FEWEST))
            self._now = float(times[-1])
            self._ready = np.concatenate([self._ready, np.repeat(times, self._rng.choice(self._tree.batch, FEWEST))])
        taken, self._ready = self._ready[:rows], self._ready[rows:]
        return taken


def flow_of(model: Model | Tree) -> Flow:
    """The flow of a model: its drift, as its clock repeats it. A tree has none."""
    if model.method == "attach":
        return Flow.of_pace(model.pace)  # type: ignore[union-attr]
    return Flow(np.array([0.0, model.gap_ms.mean()]), np.array([0.0, model.batch.mean()]))  # type: ignore[union-attr]


class ArrivalStream:
    """Endless arrival times: those at which a flow reaches the counts of a process.

    >>> flow = Flow(np.array([0.0, 1000.0]), np.array([0.0, 2.0]))  # 2 requests per second
    >>> every = iter(np.arange(1.0, 1000).reshape(-1, 9))
    >>> ArrivalStream(flow, lambda rows: next(every)).until(2000.0).tolist()
    [500.0, 1000.0, 1500.0, 2000.0]
    """

    def __init__(self, flow: Flow, counts: Counts, keep: float = 1.0, rng: np.random.Generator | None = None):
        """`keep` is the share of the arrivals that are kept, drawn by `rng`."""
        self._flow, self._counts, self._keep, self._rng = flow, counts, keep, rng
        self._times, self._drawn, self._end = np.empty(0), 0, -1.0

    def until(self, time_ms: float) -> np.ndarray:
        """All arrivals from the start until a time."""
        while self._end <= time_ms:
            left = float(self._flow.count_at(np.array([time_ms]))[0]) - self._drawn
            times = self._flow.time_at(self._counts(int(np.clip(left, FEWEST, MOST))))
            self._drawn, self._end = self._drawn + len(times), float(times[-1])
            kept = times if self._rng is None else times[self._rng.random(len(times)) < self._keep]
            self._times = np.concatenate([self._times, kept])
        return self._times[: np.searchsorted(self._times, time_ms, side="right")]


def model_counts(model: Model | Tree, rng: np.random.Generator) -> Counts:
    """The arrivals of a model at a rate of one, so many at each call.

    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> model_counts(fit(toy("0", "0", "0", gap_ms=1000)), np.random.default_rng(1))(3).round(1).tolist()
    [1.0, 2.0, 3.0]
    """
    own = flow_of(model)
    clock = ArrivalClock(model.pace, rng) if model.method == "attach" else GapClock(model, rng)  # type: ignore
    return lambda rows: own.count_at(clock.take(rows))


def gamma_counts(cv: float, rng: np.random.Generator) -> Counts:
    """Renewals with gamma gaps of mean 1 and a coefficient of variation, begun in the middle of a gap."""
    shape, now = cv**-2, -1.0

    def counts(rows):
        nonlocal now
        gaps = rng.gamma(shape, 1 / shape, rows)
        if now < 0:  # what is left of a gap at a random time
            now, gaps[0] = 0.0, rng.random() * rng.gamma(shape + 1, 1 / shape)
        times = now + np.cumsum(gaps)
        now = float(times[-1])
        return times

    return counts


def model_arrivals(
    model: Model | Tree, flow: Flow, factor: float, seeds: np.random.SeedSequence
) -> list[ArrivalStream]:
    """Processes that together have `factor` times the requests of a flow, with the bursts of a model.

    Several clocks side by side have more requests, and a random part of one has fewer. Both keep the drift in time.
    """
    clocks = max(1, int(np.ceil(factor - ROUNDING)))
    keep = min(1.0, factor / clocks)
    processes = []
    for seed in seeds.spawn(clocks):
        clock, marks = (np.random.default_rng(child) for child in seed.spawn(2))
        processes.append(ArrivalStream(flow, model_counts(model, clock), keep, None if keep > 1 - ROUNDING else marks))
    return processes


def first_arrivals(processes: list[ArrivalStream], rows: int, time_ms: float) -> list[np.ndarray]:
    """The first arrivals of all processes together, `rows` in all, by process; they are expected until `time_ms`."""
    while sum(len(process.until(time_ms)) for process in processes) < rows:
        time_ms = time_ms * LONGER + 1.0
    arrivals = [process.until(time_ms) for process in processes]
    owner = np.repeat(np.arange(len(processes)), [len(times) for times in arrivals])
    first = np.argsort(np.concatenate(arrivals), kind="stable")[:rows]
    count = np.bincount(owner[first], minlength=len(processes))
    return [times[:taken] for times, taken in zip(arrivals, count.tolist(), strict=True)]
