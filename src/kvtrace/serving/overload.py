"""Overload: more work arrives than the instances serve, so that requests wait longer and longer until arrivals end.

Four facts together make an overload of a run; each alone also happens in a steady service. The requests of a group (an
instance, or all of them) are divided into fifths in the order of their arrivals:

1. The instances never rest: they compute for at least 90 % of the time from the first arrival to their last end.
2. The median time from arrival to admission grows from the third fifth to the fourth, and from that to the last.
3. In the last fifth it is longer than the median time from admission to the last token. By Little's law, more requests
   then wait than are served.
4. The work that arrived until then took at least 1.02 times as long to be served as to arrive. This ratio, offered
   work / served work, is the load that is stated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.results import Described

FIFTHS = 5
FEWEST_REQUESTS = 50  # of a group: ten in each fifth
BUSY = 0.9  # share of the time
LEAST_LOAD = 1.02
LEAST_UNEVEN_LOAD = 1.1  # of some instances only: a router that weighs load sends them fewer requests while they queue


@dataclass(frozen=True)
class Overload(Described):
    """Instances that get more work than they serve."""

    load: float  # offered work / served work
    instances: int  # that are overloaded

    def sentence(self, instances: int) -> str:
        """What it means for the times of a run with so many instances.

        >>> Overload(2.345, 1).sentence(4)[:66]
        'Overload: the load of 1 of 4 instances is 2.3 times what it serves'
        """
        of_all = f"{self.instances:,} of {instances:,} instances"
        whose = f" of {of_all}" if self.instances < instances else ""
        who = "it serves" if self.instances == 1 < instances else "they serve" if whose else _these(instances)
        times = f"{self.load:.{1 if self.load >= 1.1 else 2}f} times"
        return (
            f"Overload: the load{whose} is {times} what {who}. Waiting grows without end: TTFT is not that of a "
            "steady service, and is longer in a longer trace. kvtrace plan finds the instances for this load."
        )


def _these(instances: int) -> str:
    return "this instance serves" if instances == 1 else f"these {instances:,} instances serve"


def overload(
    arrival_s: np.ndarray, started_s: np.ndarray, ended_s: np.ndarray, instance: np.ndarray, busy_s: tuple[float, ...]
) -> Overload | None:
    """The overload of a run in the open loop; None if its service is steady, or the requests are too few to tell.

    Args:
        arrival_s, started_s, ended_s: Request -> seconds of its arrival, admission and end; NaN if it was rejected.
        instance: Request -> the instance that served it.
        busy_s: Instance -> its compute time in seconds.

    >>> arrival = np.arange(100.0)  # a request a second; each takes two
    >>> overload(arrival, 2 * arrival, 2 * arrival + 2, np.zeros(100, int), (200.0,))
    Overload(load=2.0, instances=1)
    >>> overload(arrival, arrival, arrival + 0.5, np.zeros(100, int), (50.0,)) is None
    True
    """
    served = np.flatnonzero(~np.isnan(ended_s))
    served = served[np.argsort(arrival_s[served], kind="stable")]
    if not len(served):
        return None
    start = float(arrival_s[served[0]])
    columns = [column[served] for column in (arrival_s - start, started_s - arrival_s, ended_s - started_s)]
    places, ends, busy = instance[served], ended_s[served] - start, np.array(busy_s)
    last_end = np.full(len(busy), np.inf)  # of an instance without a request: it is not busy
    last_end[np.unique(places)] = 0.0
    np.maximum.at(last_end, places, ends)
    over = [
        number for number in np.flatnonzero(busy >= BUSY * last_end).tolist()
        if (_load(columns, places == number) or 0) >= LEAST_UNEVEN_LOAD
    ]  # fmt: skip
    if not over and busy.mean() >= BUSY * ends.max():
        over = list(range(len(busy))) if _load(columns, np.ones(len(served), bool)) else []
    load = _load(columns, np.isin(places, over)) if over else None
    return None if load is None else Overload(load, len(over))


def _load(columns: list[np.ndarray], chosen: np.ndarray) -> float | None:
    """Offered work / served work of the chosen requests, None if their waiting does not grow as in an overload."""
    arrival, wait, served = (column[chosen] for column in columns)
    if len(arrival) < FEWEST_REQUESTS:
        return None
    third, fourth, last = (float(np.median(part)) for part in np.array_split(wait, FIFTHS)[2:])
    then = float(np.median(np.array_split(arrival, FIFTHS)[-1]))
    load = (then + last) / then if then else np.inf
    grows = third < fourth < last and last > float(np.median(served))
    return load if grows and LEAST_LOAD <= load < np.inf else None
