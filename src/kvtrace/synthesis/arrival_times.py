"""Arrival times of a stream: from a fitted model (`Pace`, `ArrivalClock`), or from given rates (`step_arrivals`).

An arrival event is a gap and the requests that arrive together after it. A pace holds the events and the duration of
each window of about 50 requests. A clock draws the events of a window in random order, with new gaps that sum to the
duration of the window. So the drift and the bursts of the rate are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, UsageError
from .._base.units import decimal, milliseconds
from .bins import Bins, InvalidModelError, integers

WINDOW = 50  # requests whose arrivals are drawn together
MAX_WINDOWS, MAX_EVENTS = 20_000, 100_000  # of a pace
MAX_WINDOW_ROWS = 1 << 24  # a window is drawn in memory
MIN_WINDOW_EVENTS = 4  # kept in each window that has as many
DIGITS = 3  # significant digits of a duration
MAX_SPAN = 1 << 60  # microseconds of all windows, 36,000 years: sums of a few such times are below 2^63


@dataclass(frozen=True, eq=False)
class Pace:
    """Arrival events by window; times in microseconds."""

    rows: np.ndarray  # window -> requests
    duration: np.ndarray  # window -> microseconds from the last arrival before it to its own last arrival
    starts: np.ndarray  # window -> its first event; the last entry is the number of events
    gap: np.ndarray  # event -> bin of the gap before it
    batch: np.ndarray  # event -> requests that arrive together
    bins: Bins  # of the gaps

    @classmethod
    def of(cls, timestamp: np.ndarray) -> Pace:
        """The pace of arrival times in ms; the first is 0. InputError if they span more than 36,000 years.

        >>> pace = Pace.of(np.array([0.0, 0.0, 250.0, 250.0, 500.0]))
        >>> pace.rows.tolist(), pace.duration.tolist(), pace.batch.tolist()
        ([5], [750000], [1, 2, 2])
        """
        micros = np.rint(timestamp * 1000).astype(np.int64)
        if len(micros) and micros[-1] > MAX_SPAN:
            raise InputError("the trace spans more than 36,000 years. Check the unit of its timestamps.")
        first = np.flatnonzero(np.diff(micros, prepend=-1) > 0)  # event -> its first row
        batch, gaps = np.diff(first, append=len(micros)), np.diff(micros[first], prepend=0)
        if len(gaps) > 1:
            gaps[0] = np.median(gaps[1:])  # a gap between the last window and the first, when the clock starts over
        size = max(WINDOW, len(micros) // MAX_WINDOWS)
        window = np.unique(np.searchsorted(first, np.arange(0, len(micros), size)))
        window = window[window < len(first)]  # window -> its first event
        rows = np.add.reduceat(batch, window)
        duration = rounded(np.add.reduceat(gaps, window))
        bins = Bins.of(gaps)
        max_events = max(MIN_WINDOW_EVENTS, MAX_EVENTS // len(window))
        events, starts = _thinned_events(np.append(window, len(first)), gaps, batch, max_events)
        return cls(rows, duration, starts, bins.codes(gaps[events]), batch[events], bins)

    def to_dict(self) -> dict[str, Any]:
        """Lists by name."""
        names = ("rows", "duration", "starts", "gap", "batch")
        return {name: getattr(self, name).tolist() for name in names} | {"bins": self.bins.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Pace:
        """The pace of `to_dict`; InvalidModelError if its lists are inconsistent."""
        rows, duration, starts, gap, batch = (
            integers(values[name]) for name in ("rows", "duration", "starts", "gap", "batch")
        )
        pace = cls(rows, duration, starts, gap, batch, Bins.from_dict(values["bins"]))
        windows, events = len(pace.rows), len(pace.gap)
        is_consistent = (
            windows and len(pace.duration) == windows and len(pace.starts) == windows + 1 and len(pace.batch) == events
            and pace.starts[0] == 0 and pace.starts[-1] == events and (np.diff(pace.starts) > 0).all()
            and pace.rows.min() > 0 and pace.rows.max() <= MAX_WINDOW_ROWS and pace.duration.min() >= 0
            and pace.duration.sum(dtype=np.float64) <= 2 * MAX_SPAN
            and pace.batch.min() > 0 and pace.batch.max() <= MAX_WINDOW_ROWS
            and pace.gap.min() >= 0 and pace.gap.max() < len(pace.bins)
        )  # fmt: skip
        if not is_consistent:
            raise InvalidModelError("inconsistent arrivals")
        return pace


class ArrivalClock:
    """Endless arrival times of a stream: the windows of a pace, over and over.

    >>> clock = ArrivalClock(Pace.of(np.arange(4) * 1000.0), np.random.default_rng(1))
    >>> clock.take(4).round(-2).tolist(), clock.take(4).round(-2).tolist()
    ([1000.0, 2000.0, 3000.0, 4000.0], [5000.0, 6000.0, 7000.0, 8000.0])
    """

    def __init__(self, pace: Pace, rng: np.random.Generator):
        self._pace, self._rng = pace, rng
        self._window, self._now = 0, 0.0
        self._ready = np.empty(0)

    def take(self, rows: int) -> np.ndarray:
        """The next arrival times, in ms."""
        ready, chunks = len(self._ready), [self._ready]
        while ready < rows:
            chunks.append(self._draw_windows(rows - ready))
            ready += len(chunks[-1])
        times = np.concatenate(chunks)
        self._ready = times[rows:]
        return times[:rows]

    def _draw_windows(self, rows):
        """Arrival times of the next windows, with about `rows` requests in all."""
        pace, rng = self._pace, self._rng
        count = max(1, int(rows * len(pace.rows) // int(pace.rows.sum())))
        window = (self._window + np.arange(count)) % len(pace.rows)
        self._window = int(window[-1]) + 1
        rounds = _rounds(pace.rows, pace.batch, pace.starts)[window]
        event, place = shuffled(pace.starts[window], np.diff(pace.starts)[window], rounds, rng)
        batch = _limit_batches(pace.batch[event], place, pace.rows[window])
        event, place, batch = event[batch > 0], place[batch > 0], batch[batch > 0]
        gaps = pace.bins.draw(pace.gap[event], rng).astype(np.float64)
        total = np.bincount(place, weights=gaps, minlength=count)
        gaps[total[place] == 0] = 1.0  # all gaps are 0: spread the duration of the window evenly
        total = np.bincount(place, weights=gaps, minlength=count)
        gaps *= (pace.duration[window] / total)[place]
        times = self._now + np.cumsum(gaps) / 1000
        self._now = float(times[-1])
        return np.repeat(times, batch)


def shuffled(starts, sizes, rounds, rng):
    """The members of groups in random order within each round: (member, index of its group).

    Group g has the members starts[g] ... starts[g] + sizes[g] - 1. Groups and rounds keep their order.

    >>> shuffled(np.array([0, 5]), np.array([1, 1]), np.array([2, 1]), np.random.default_rng(1))
    (array([0, 0, 5]), array([0, 0, 1]))
    """
    lap = np.repeat(np.arange(len(starts)), rounds)  # round -> group, over the rounds of all groups
    laps = np.repeat(np.arange(len(lap)), sizes[lap])
    first = np.cumsum(sizes[lap]) - sizes[lap]
    member = starts[lap][laps] + np.arange(len(laps)) - first[laps]
    order = np.argsort(laps + rng.random(len(laps)))  # shuffle the members within each round
    return member[order], lap[laps]


def step_arrivals(step_rates: str, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Arrival times in ms at given rates: "RATE@DURATION,...", in requests per second and seconds.

    Durations may have a suffix: ms, s, m or h. Each rate is a Poisson process. A rate of 0 is a pause. The last
    rate continues after its duration, which is optional.

    Raises:
        UsageError: The text is not a valid list of rates.

    >>> times = step_arrivals("10@60s,0@1m,2", np.random.default_rng(1), 800)
    >>> int((times < 60_000).sum()), int(((times >= 60_000) & (times < 120_000)).sum())
    (610, 0)
    """
    rates, durations = zip(*(_parse_step(step.strip()) for step in step_rates.split(",")), strict=True)
    if rates[-1] == 0:
        raise UsageError("the last rate of --step-rates must be above 0.")
    if None in durations[:-1]:
        raise UsageError("each rate of --step-rates except the last needs a duration. Example: 10@60s,20.")
    starts = np.cumsum([0.0, *durations[:-1]])  # ms at which each rate begins
    due = np.cumsum([0.0, *(rate * duration / 1000 for rate, duration in zip(rates, durations[:-1], strict=False))])
    count = np.cumsum(rng.exponential(size=rows))  # expected number of requests at each arrival
    step = np.searchsorted(due, count, side="right") - 1
    return starts[step] + (count - due[step]) / np.array(rates)[step] * 1000


def _parse_step(text):
    """(requests per second, duration in ms or None) of one step."""
    rate, at, duration = text.partition("@")
    try:
        plain = duration.strip().replace(".", "", 1).isdecimal()  # a number without a unit is seconds
        step = decimal(rate.removesuffix("/s")), milliseconds(f"{duration}s" if plain else duration) if at else None
    except UsageError:
        step = -1.0, None
    if not 0 <= step[0] < np.inf:
        raise UsageError(f"--step-rates: {text!r} is not RATE@DURATION. Example: 10@60s,20@5m.")
    return step


def rounded(values: np.ndarray) -> np.ndarray:
    """Integers, rounded to DIGITS significant digits.

    >>> rounded(np.array([7, 12345]))
    array([    7, 12300])
    """
    scale = 10 ** np.maximum(0, np.floor(np.log10(np.maximum(values, 1))).astype(np.int64) - (DIGITS - 1))
    return (values + scale // 2) // scale * scale


def _thinned_events(starts, gaps, batch, max_events):
    """A sample of the events of each window, sorted by value to hide their order; first event of each window."""
    events, rng = [], np.random.default_rng(0)
    for start, stop in pairwise(starts):
        order = start + np.lexsort((batch[start:stop], gaps[start:stop]))
        events.append(stratified_sample(order, max_events, rng))
    return np.concatenate(events), offsets_of([len(part) for part in events])


def stratified_sample(members: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """At most `size` of the members: one random member of each of `size` runs of equal length.

    >>> stratified_sample(np.arange(9), 3, np.random.default_rng(1))
    array([1, 5, 6])
    """
    if len(members) <= size:
        return members
    return members[((np.arange(size) + rng.random(size)) * len(members) / size).astype(np.int64)]


def _rounds(rows, batch, starts):
    """How often the events of each window are used, to cover its rows."""
    return -(-rows // np.add.reduceat(batch, starts[:-1]))


def _limit_batches(batch, place, rows):
    """Reduce the last batches of each window, so that the window has exactly its number of rows."""
    total = np.cumsum(batch)
    first = np.searchsorted(place, np.arange(len(rows)))
    before = total - batch - (total - batch)[first][place]
    return np.clip(rows[place] - before, 0, batch)
