"""Expected requests over time (`Flow`): a time of arrival is the time at which an expected count is reached.

Arrivals at a rate that changes are arrivals at a rate of one, at other times: u, a count of requests, becomes the time
at which the flow reaches u (the time-rescaling theorem of point processes). So the bursts of a client, its drift and a
profile of the day are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .._base.arrays import offsets_of

if TYPE_CHECKING:
    from .arrivals import Pace


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
