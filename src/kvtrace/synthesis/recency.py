"""Where each request of a trace finds its blocks in the recency list, in two segments; and hits at a few capacities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._native.growth import CAPACITIES
from ..analysis.reuse import Segments, find_segments
from ..trace.trace import Trace

# shares of the working set; those of figures.py are among them
GRID = np.array([0.002, 0.004, 0.007, 0.012, 0.02, 0.03, 0.045, 0.07, 0.1, 0.14, 0.2, 0.28, 0.38, 0.5, 0.7, 1])


class Recency(NamedTuple):
    """What each request finds in the recency list: its deepest segment, and the segments before it as one."""

    distance: np.ndarray  # row -> distinct blocks used since the last use of its deepest hit block
    fork: np.ndarray  # row -> hit blocks before its deepest segment, which later requests used too
    fork_distance: np.ndarray  # row -> distinct blocks used since the last use of these; 0 without them
    correction: np.ndarray  # capacity of the grid -> hits of all segments / hits of the two


def recency_of(trace: Trace) -> Recency:
    """Find each request's hit blocks in the recency list.

    >>> from kvtrace.trace.building import toy
    >>> found = recency_of(toy("0 1", "2", "0 3", "0 1"))
    >>> found.distance.tolist(), found.fork.tolist(), found.fork_distance.tolist()
    ([0, 0, 1, 3], [0, 0, 0, 1], [0, 0, 0, 0])
    """
    found = find_segments(trace)
    distance, fork, fork_distance = (np.zeros(len(trace), dtype=np.int64) for _ in range(3))
    last = np.flatnonzero(np.diff(found.row, append=-1))  # the deepest segment of each row that hits
    row = found.row[last]
    hits = np.bincount(found.row, weights=found.blocks, minlength=len(trace)).astype(np.int64)
    distance[row] = found.rank[last] - 1
    fork[row] = hits[row] - found.blocks[last]
    several = last[fork[row] > 0]
    fork_distance[found.row[several]] = found.rank[several - 1] - 1
    return Recency(distance, fork, fork_distance, _correction(trace, found, hits, distance, fork, fork_distance))


def capacity_grid(working_set: int) -> np.ndarray:
    """The capacities in blocks at which the hits of a sample are compared with those of its trace.

    >>> capacity_grid(1000)[[0, -1]].tolist()
    [2.0, 1000.0]
    """
    return np.maximum(GRID * max(working_set, CAPACITIES), np.arange(1.0, CAPACITIES + 1))


def _correction(trace, found: Segments, hits, distance, fork, fork_distance):
    """Hits of LRU at each capacity / hits if each path were two segments."""
    grid = capacity_grid(trace.distinct)
    exact = np.array([np.clip(c - found.rank + 1, 0, found.blocks).sum() for c in grid])
    two = np.array([(np.clip(c - distance, 0, hits - fork) + np.clip(c - fork_distance, 0, fork)).sum() for c in grid])
    return np.round(np.divide(exact, two, out=np.ones(CAPACITIES), where=two > 0), 4)
