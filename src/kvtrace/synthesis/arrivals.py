"""When the requests of a stream arrive: as a model's did (`Pace`, `Clock`), or at rates that are given (`profile`).

An arrival event is a gap and the requests that come together after it. A pace keeps events by pieces of about 100
requests, and how long each piece lasted: a clock draws a piece's events in a new order, with new gaps that last as
long together, so the rate drifts and bursts as it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .._base.errors import UsageError
from .bins import Bins

PIECE = 100  # requests whose arrivals are drawn together
MOST_PIECES, MOST_EVENTS, FEWEST_EVENTS = 20_000, 100_000, 4  # kept in all, in all, and in a piece that has them
DIGITS = 3  # kept of a piece's duration


@dataclass(frozen=True, eq=False)
class Pace:
    """Arrival events by pieces; times in microseconds."""

    rows: np.ndarray  # piece -> requests
    duration: np.ndarray  # piece -> microseconds from the last arrival before it to its own last
    starts: np.ndarray  # piece -> its first event; one more: their number
    gap: np.ndarray  # event -> bin of the time since the event before
    batch: np.ndarray  # event -> requests that arrive together
    bins: Bins  # of the gaps

    @classmethod
    def of(cls, timestamp: np.ndarray) -> Pace:
        """The pace of arrivals in ms, the first at 0.

        >>> pace = Pace.of(np.array([0.0, 0.0, 250.0, 250.0, 500.0]))
        >>> pace.rows.tolist(), pace.duration.tolist(), pace.batch.tolist()
        ([5], [750000], [1, 2, 2])
        """
        micros = np.rint(timestamp * 1000).astype(np.int64)
        first = np.flatnonzero(np.diff(micros, prepend=-1) > 0)  # event -> its first row
        batch, gaps = np.diff(first, append=len(micros)), np.diff(micros[first], prepend=0)
        if len(gaps) > 1:
            gaps[0] = np.median(gaps[1:])  # so that a second round can follow the first
        size = max(PIECE, len(micros) // MOST_PIECES)
        piece = np.unique(np.searchsorted(first, np.arange(0, len(micros), size)))
        piece = piece[piece < len(first)]  # piece -> its first event
        rows = np.add.reduceat(batch, piece)
        duration = _rounded(np.add.reduceat(gaps, piece))
        bins = Bins.of(gaps)
        most = max(FEWEST_EVENTS, MOST_EVENTS // len(piece))
        kept, starts = _thinned(np.append(piece, len(first)), gaps, batch, most)
        return cls(rows, duration, starts, bins.codes(gaps[kept]), batch[kept], bins)

    def to_dict(self) -> dict:
        """Lists by name."""
        names = ("rows", "duration", "starts", "gap", "batch")
        return {name: getattr(self, name).tolist() for name in names} | {"bins": self.bins.to_dict()}

    @classmethod
    def from_dict(cls, found: dict) -> Pace:
        """The pace of to_dict; ValueError where its parts do not fit."""
        rows, duration, starts, gap, batch = (
            np.array(found[name], dtype=np.int64) for name in ("rows", "duration", "starts", "gap", "batch")
        )
        pace = cls(rows, duration, starts, gap, batch, Bins.from_dict(found["bins"]))
        pieces, events = len(pace.rows), len(pace.gap)
        fits = (
            pieces and len(pace.duration) == pieces and len(pace.starts) == pieces + 1 and len(pace.batch) == events
            and pace.starts[0] == 0 and pace.starts[-1] == events and (np.diff(pace.starts) > 0).all()
            and (pace.rows > 0).all() and (pace.duration >= 0).all() and (pace.batch > 0).all()
            and pace.gap.min() >= 0 and pace.gap.max() < len(pace.bins)
        )  # fmt: skip
        if not fits:
            raise ValueError("arrivals that do not fit together")
        return pace


class Clock:
    """Arrival times of a stream, on and on: after the last piece of a pace, its first again.

    >>> clock = Clock(Pace.of(np.arange(4) * 1000.0), np.random.default_rng(1))
    >>> clock.take(4).round(-2).tolist(), clock.take(4).round(-2).tolist()
    ([1000.0, 2000.0, 3000.0, 4000.0], [5000.0, 6000.0, 7000.0, 8000.0])
    """

    def __init__(self, pace: Pace, rng: np.random.Generator):
        self._pace, self._rng = pace, rng
        self._piece, self._now = 0, 0.0
        self._ready = np.empty(0)

    def take(self, rows: int) -> np.ndarray:
        """The next so many arrival times, in ms."""
        ready, parts = len(self._ready), [self._ready]
        while ready < rows:
            parts.append(self._more(rows - ready))
            ready += len(parts[-1])
        times = np.concatenate(parts)
        self._ready = times[rows:]
        return times[:rows]

    def _more(self, rows):
        """Times of the next pieces, of about so many rows."""
        pace, rng = self._pace, self._rng
        count = max(1, int(rows * len(pace.rows) // int(pace.rows.sum())))
        piece = (self._piece + np.arange(count)) % len(pace.rows)
        self._piece = int(piece[-1]) + 1
        event, place = shuffled(
            pace.starts[piece], np.diff(pace.starts)[piece], _rounds(pace.rows, pace.batch, pace.starts)[piece], rng
        )
        batch = _cut(pace.batch[event], place, pace.rows[piece])
        event, place, batch = event[batch > 0], place[batch > 0], batch[batch > 0]
        gaps = pace.bins.draw(pace.gap[event], rng).astype(np.float64)
        drawn = np.bincount(place, weights=gaps, minlength=count)
        gaps[drawn[place] == 0] = 1.0  # gaps that say nothing: the piece's duration evenly
        drawn = np.bincount(place, weights=gaps, minlength=count)
        gaps *= (pace.duration[piece] / drawn)[place]
        times = self._now + np.cumsum(gaps) / 1000
        self._now = float(times[-1])
        return np.repeat(times, batch)


def shuffled(starts, sizes, rounds, rng):
    """Members of some groups in random order, each once a round: (member, place of its group).

    Group g has the members starts[g] ... starts[g] + sizes[g] - 1; groups keep their order, and so do rounds.

    >>> shuffled(np.array([0, 5]), np.array([1, 1]), np.array([2, 1]), np.random.default_rng(1))
    (array([0, 0, 5]), array([0, 0, 1]))
    """
    lap = np.repeat(np.arange(len(starts)), rounds)  # one after another, the rounds of all groups
    laps = np.repeat(np.arange(len(lap)), sizes[lap])
    first = np.cumsum(sizes[lap]) - sizes[lap]
    member = starts[lap][laps] + np.arange(len(laps)) - first[laps]
    order = np.argsort(laps + rng.random(len(laps)))  # each lap's members, shuffled among themselves
    return member[order], lap[laps]


def profile(step_rates: str, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Arrival times in ms of so many requests at given rates: "RATE@DURATION,...", requests a second for seconds.

    Durations may end in ms, s, m or h. Gaps are exponential (a Poisson process of that rate). The last rate holds on
    after its duration, which may be left out; a rate of 0 is a pause. UsageError where the text says something else.

    >>> times = profile("10@60s,0@1m,2", np.random.default_rng(1), 800)
    >>> int((times < 60_000).sum()), int(((times >= 60_000) & (times < 120_000)).sum())
    (610, 0)
    """
    rates, durations = zip(*(_step(step.strip()) for step in step_rates.split(",")), strict=True)
    if rates[-1] == 0:
        raise UsageError("--step-rates ends in a rate of 0, so no request could follow. Try a last rate above 0.")
    if None in durations[:-1]:
        raise UsageError("--step-rates: only the last rate may go without a duration. Try 10@60s,20.")
    ends = np.cumsum([0.0, *durations[:-1]])  # ms at which each rate begins
    due = np.cumsum([0.0, *(rate * duration / 1000 for rate, duration in zip(rates, durations[:-1], strict=False))])
    wanted = np.cumsum(rng.exponential(size=rows))  # requests that are due at each arrival
    step = np.searchsorted(due, wanted, side="right") - 1
    return ends[step] + (wanted - due[step]) / np.array(rates)[step] * 1000


UNITS = {"ms": 1.0, "s": 1e3, "m": 60e3, "h": 3600e3}


def _step(text):
    """(requests a second, ms or None) of one step."""
    rate, at, duration = text.partition("@")
    unit = next((unit for unit in UNITS if duration.endswith(unit)), "")
    try:
        found = float(rate), float(duration.removesuffix(unit)) * UNITS[unit or "s"] if at else None
        if not (0 <= found[0] < np.inf and (found[1] is None or 0 <= found[1] < np.inf)):
            raise ValueError
    except ValueError:
        raise UsageError(f"--step-rates: {text!r} is no RATE@DURATION. Try 10@60s,20@5m.") from None
    return found


def _rounded(values):
    """Whole numbers to so many digits."""
    scale = 10 ** np.maximum(0, np.floor(np.log10(np.maximum(values, 1))).astype(np.int64) - (DIGITS - 1))
    return (values + scale // 2) // scale * scale


def _thinned(starts, gaps, batch, most):
    """Events that are kept of each piece, sorted so that their order says nothing, and where each piece begins."""
    kept, rng = [], np.random.default_rng(0)
    for start, stop in pairwise(starts):
        order = start + np.lexsort((batch[start:stop], gaps[start:stop]))
        kept.append(spread(order, most, rng))
    return np.concatenate(kept), np.cumsum([0] + [len(part) for part in kept])


def spread(members: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """At most so many of the members: one, by chance, of each of as many runs of equal length.

    >>> spread(np.arange(9), 3, np.random.default_rng(1))
    array([1, 5, 6])
    """
    if len(members) <= most:
        return members
    return members[((np.arange(most) + rng.random(most)) * len(members) / most).astype(np.int64)]


def _rounds(rows, batch, starts):
    """How often each piece's events are needed for its rows."""
    return -(-rows // np.add.reduceat(batch, starts[:-1]))


def _cut(batch, place, rows):
    """Batches so that each place has exactly its rows: the last ones are cut, or left out."""
    total = np.cumsum(batch)
    first = np.searchsorted(place, np.arange(len(rows)))
    before = total - batch - (total - batch)[first][place]
    return np.clip(rows[place] - before, 0, batch)
