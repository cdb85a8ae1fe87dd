"""Training of `reuse-density`: from the reuse times of a trace's blocks to a ReuseTable.

1. Each use of a block has a cell (policies/learned.py) and a time until the next use; the time of a use without a
   next one is censored at the end of the trace.
2. `hazards`: the chance that a block is reused in an age bucket if it was not before, for each cell. Few cells have
   many uses, so it is a product: the hazard of the cell's group (tail by turn, shared by uses, private by turn and
   birth) x a factor of the new blocks x a factor of the gap. The factors are fitted in turn, for three spans of age,
   and shrunk to 1.
3. `indices`: the Gittins index of each cell and age, max over T of P(reuse within T) / E[time kept within T].
4. `merged`: cells with similar indices become one class, by k-means on the logarithms, weighted by uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.errors import InputError
from ..trace.trace import Trace
from .demand import BlockDemand, block_demand
from .structures.reuse_table import Bounds, ReuseTable

CLASSES = 32
LEVELS_PER_OCTAVE = 4
AGES = 31  # bounds of ages, by a factor of sqrt 2 up to eight times the span of the training
SHRINKAGE = 20  # requests that a factor of 1 counts for
SPANS = 3  # of age, each with a factor of its own
ROUNDS = 6  # of fitting the factors in turn
LEAST = 1e-30  # of an index, per ms


def train(
    trace: Trace,
    demand: BlockDemand | None = None,
    start: int = 0,
    stop: int | None = None,
    *,
    bounds: Bounds | None = None,
    classes: int = CLASSES,
) -> ReuseTable:
    """Train a table on the requests `start` to `stop` of a trace.

    Args:
        trace: The trace.
        demand: Its block demand, if it is known.
        start: The first request whose uses count; what came before is known to the cells.
        stop: The first request that is not seen at all.
        bounds: The buckets of features.
        classes: The most classes that the table has.

    Raises:
        InputError: The requests span no time.

    >>> from kvtrace.trace.building import toy
    >>> table = train(toy("0 1", "2", "0 1 3", "4", "0 1 3 5", gap_ms=1000))
    >>> len(table.class_of_cell), len(table.ages_ms)
    (684, 31)
    """
    demand = demand or block_demand(trace)
    bounds = bounds or Bounds()
    uses = observed(demand, bounds, start, len(trace) if stop is None else stop)
    ages_ms = uses.span_ms * 2.0 ** np.arange(3 - (AGES - 1) / 2, 3.01, 0.5)
    ages_ms = np.unique(np.maximum(np.round(ages_ms), np.arange(1, AGES + 1)))  # whole ms, so that ages compare exactly
    index = indices(hazards(uses, ages_ms, bounds), ages_ms)
    class_of_cell, index = merged(index, np.bincount(uses.cell, minlength=len(index)), classes)
    levels = np.round(LEVELS_PER_OCTAVE * np.log2(np.maximum(index, LEAST))).astype(int)
    return ReuseTable(
        bounds, tuple(ages_ms.tolist()), tuple(class_of_cell.tolist()), tuple(map(tuple, levels.tolist()))
    )


@dataclass(frozen=True)
class Uses:
    """Uses of blocks, one value for each in every array."""

    cell: np.ndarray
    time_ms: np.ndarray  # until the next use, or the end of the trace
    is_reused: np.ndarray
    span_ms: float
    per_request: float  # uses of a request, on average; they are reused together


def observed(demand: BlockDemand, bounds: Bounds, start: int, stop: int) -> Uses:
    """The uses of blocks by the requests `start` to `stop`."""
    from .policies.learned import cells

    row = np.repeat(np.arange(len(demand)), demand.full)
    order = np.lexsort((row, demand.ids))
    next_row = np.full(len(row), len(demand))
    again = demand.ids[order][1:] == demand.ids[order][:-1]
    next_row[order[:-1][again]] = row[order[1:][again]]
    chosen = (row >= start) & (row < stop)
    end_ms = demand.arrival[stop - 1] if stop > start else 0.0
    span_ms = end_ms - demand.arrival[start] if stop > start else 0.0
    if not span_ms > 0 or not chosen.any():
        raise InputError("reuse-density learns from times, and these requests span none. Use a trace with timestamps.")
    is_reused = next_row[chosen] < stop
    reused_ms = demand.arrival[np.where(is_reused, next_row[chosen], stop - 1)]
    time_ms = reused_ms - demand.arrival[row[chosen]]
    return Uses(cells(demand, bounds)[chosen], time_ms, is_reused, float(span_ms), chosen.sum() / (stop - start))


def hazards(uses: Uses, ages_ms: np.ndarray, bounds: Bounds) -> np.ndarray:
    """[cell, age bucket] chance of a reuse in the bucket if there was none before."""
    reused, at_risk = _counts(uses, ages_ms, bounds.cells)
    group, new, gap = _features(bounds)
    few = SHRINKAGE * max(uses.per_request / 2, 1.0)
    pooled = (reused.sum(0) + 1e-9) / (at_risk.sum(0) + 1e-6)
    in_group, risk_in_group = _summed(reused, group), _summed(at_risk, group)
    ratio = (in_group.sum(1) + few) / ((risk_in_group * pooled).sum(1) + few)
    prior = 1.5 * few
    hazard = (in_group + prior * np.minimum(ratio[:, None] * pooled, 0.95)) / (risk_in_group + prior)
    span = np.minimum(np.arange(len(pooled)) * SPANS // len(pooled), SPANS - 1)
    factors = [(feature, np.ones((feature.max() + 1, SPANS))) for feature in (new, gap)]

    def product() -> np.ndarray:
        result = hazard[group]
        for feature, factor in factors:
            result = result * factor[feature][:, span]
        return np.minimum(result, 0.95)

    by_span = np.eye(SPANS)[span]  # age bucket -> its span
    for _ in range(ROUNDS):
        for feature, factor in factors:
            expected = _summed(at_risk * product(), feature) @ by_span
            factor *= (_summed(reused, feature) @ by_span + few) / (expected + few)
    return _extended(product(), at_risk.sum(0) > 2.5 * few, ages_ms)


def indices(hazard: np.ndarray, ages_ms: np.ndarray) -> np.ndarray:
    """[cell, age bucket] greatest chance of reuse per expected ms of keeping, made to fall with age."""
    width = _widths(ages_ms)
    survival = np.concatenate([np.ones((len(hazard), 1)), np.cumprod(1 - hazard, 1)], 1)
    reuse, kept = survival[:, :-1] * hazard, (survival[:, :-1] + survival[:, 1:]) / 2 * width
    index = np.zeros_like(hazard)
    for age in range(hazard.shape[1]):
        gained, paid = np.cumsum(reuse[:, age:], 1), np.cumsum(kept[:, age:], 1)
        index[:, age] = (gained / np.maximum(paid, 1e-300)).max(1)
    return np.minimum.accumulate(index, 1)


def merged(index: np.ndarray, weight: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Class of each cell, and the index of each class."""
    if classes >= len(index):
        return np.arange(len(index)), index
    logs, weight = np.log2(np.maximum(index, LEAST)), weight + 1e-9
    centres = [np.average(logs, axis=0, weights=weight)]
    distance = np.full(len(logs), np.inf)
    while len(centres) < classes:  # each starts at the cell that costs most so far
        distance = np.minimum(distance, ((logs - centres[-1]) ** 2).sum(1))
        centres.append(logs[(weight * distance).argmax()])
    for _ in range(30):
        class_of = ((logs[:, None] - np.array(centres)[None]) ** 2).sum(2).argmin(1)
        centres = _centres(logs, class_of, weight, classes)
    used, class_of = np.unique(class_of, return_inverse=True)
    return class_of, 2.0 ** _centres(logs, class_of, weight, len(used))


def _counts(uses, ages_ms, cells):
    """[cell, age bucket] reuses, and blocks at risk, of which those censored in the bucket count half."""
    age = np.searchsorted(ages_ms, uses.time_ms, side="right")
    shape = (cells, len(ages_ms) + 1)
    place = uses.cell * shape[1] + age
    ended = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape)
    reused = np.bincount(place[uses.is_reused], minlength=shape[0] * shape[1]).reshape(shape)
    reached = ended[:, ::-1].cumsum(1)[:, ::-1]
    return reused.astype(float), reached - (ended - reused) / 2


def _features(bounds: Bounds):
    """Cell -> group, bucket of new blocks, bucket of the gap."""
    news, gaps = len(bounds.new_blocks) + 1, len(bounds.gaps_ms) + 2
    private = np.arange(bounds.cells - bounds.tails - bounds.shared)
    first = bounds.tails + bounds.shared
    group = np.concatenate([np.arange(first), first + private // (news * gaps)])
    zeros = np.zeros(first, dtype=int)
    return group, np.concatenate([zeros, private // gaps % news]), np.concatenate([zeros, private % gaps])


def _extended(hazard, is_known, ages_ms):
    """Beyond the ages that were seen often enough, the rate of reuse falls as 1 / age."""
    last = int(np.flatnonzero(is_known)[-1]) if is_known.any() else 0
    ends = np.append(ages_ms, 2 * ages_ms[-1])
    rate = -np.log1p(-hazard[:, last]) * ends[last] / _widths(ages_ms)[last]
    for age in range(last + 1, hazard.shape[1]):
        hazard[:, age] = np.minimum(-np.expm1(-rate * _widths(ages_ms)[age] / ends[age]), 0.95)
    return hazard


def _widths(ages_ms):
    """The length of each age bucket; the last one is as long as all before."""
    return np.diff(np.concatenate([[0.0], ages_ms, [2 * ages_ms[-1]]]))


def _summed(values, group):
    """Rows of a table, summed by group."""
    sums = np.zeros((group.max() + 1, values.shape[1]))
    np.add.at(sums, group, values)
    return sums


def _centres(logs, class_of, weight, classes):
    """The weighted mean of each class; classes without a cell are far from all cells."""
    mass = np.bincount(class_of, weight, minlength=classes)
    sums = np.zeros((classes, logs.shape[1]))
    np.add.at(sums, class_of, logs * weight[:, None])
    return np.where(mass[:, None] > 0, sums / np.maximum(mass, 1e-300)[:, None], 1e9)
