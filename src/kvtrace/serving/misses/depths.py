"""How much of each prompt could have hit, in blocks, under ever weaker conditions.

A cause of misses is the range between two depths: hits <= what the same instance could hit without eviction <= what one
instance for all requests could hit <= what was computed before in the same isolation domain <= ... in any domain.
Requests count in the order in which the engine looked them up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..._base.arrays import offsets_of
from ..._native import numbering
from ..._native.recency import Recency
from ...analysis.reuse import Segments
from ...cache import engines
from ...cache.demand import BlockDemand, block_demand
from ...cache.simulation import Simulation, run
from ...trace.columns import Columns, replace_columns
from ...trace.hits import unlimited_hits
from ...trace.trace import Trace
from ..instances import FleetSimulation
from ..models.possible_hits import without_eviction
from ..serving_run import ServingRun


@dataclass(frozen=True, eq=False)
class Depths:
    """Request -> leading blocks that could have hit, int64; each field is at least the one before it."""

    hits: np.ndarray  # as simulated
    on_instance: np.ndarray  # without eviction, on the instance that served the request
    on_one: np.ndarray  # without eviction, if one instance served all requests
    in_domain: np.ndarray  # in an earlier prompt of the same domain, with whole tokens and partial blocks
    in_any: np.ndarray  # in an earlier prompt of any domain
    segments: Segments  # of `on_instance`, in the recency list of each instance
    start: np.ndarray  # segment -> its first block in the prompt


def depths_of(simulation: Simulation, trace: Trace) -> Depths:
    """The depths of a simulation; `trace` is the one that was given, with its domains."""
    own, order = simulation.trace, lookup_order(simulation)
    demand = block_demand(own, *simulation.setting.demand_options)
    hits = simulation.hit_blocks.astype(np.int64)
    segments, start, seen_there = _on_instances(simulation, demand, order)
    seen = seen_there
    if _instances(simulation) > 1 or demand.mode != "block" or demand.trace is not own:
        seen = _seen(own, order)
    usable = _usable(simulation, demand)
    if simulation.setting.layout is None:
        on_one, on_instance = usable(seen), usable(seen_there)
    else:
        on_one, on_instance = _with_groups(simulation, order)
    on_instance = np.maximum(hits, on_instance)
    on_one = np.maximum(on_instance, on_one)
    in_domain = np.maximum(on_one, seen)
    in_any = in_domain if trace.domain is None else np.maximum(in_domain, _seen(trace, order))
    return Depths(hits, on_instance, on_one, in_domain, in_any, segments, start)


def lookup_order(simulation: Simulation) -> np.ndarray:
    """The requests in the order in which their instance looked them up, without those that were not served."""
    if not isinstance(simulation, ServingRun):
        return np.arange(len(simulation.trace))
    served = np.flatnonzero(~np.isnan(simulation.started_s))
    return served[np.argsort(simulation.started_s[served], kind="stable")]


def instance_of(simulation: Simulation) -> np.ndarray:
    """Request -> the instance that served it."""
    if isinstance(simulation, FleetSimulation):
        return simulation.instance
    return np.zeros(len(simulation.trace), dtype=np.int64)


def _instances(simulation: Simulation) -> int:
    return simulation.instances if isinstance(simulation, FleetSimulation) else 1


def _on_instances(simulation: Simulation, demand: BlockDemand, order: np.ndarray):
    """The segments of all requests in the recency list of their instance, their first blocks, and the blocks in all."""
    instance, parts = instance_of(simulation)[order], []
    for number in range(_instances(simulation)):
        rows = order if _instances(simulation) == 1 else order[instance == number]
        recency = Recency(len(rows), demand.trace.distinct)
        row, last_row, blocks, rank = recency.runs(*_paths(demand, rows))
        parts.append((rows[row], rows[last_row], blocks, rank, _first_blocks(row, blocks)))
    row, last_row, blocks, rank, start = map(np.concatenate, zip(*parts, strict=True))
    seen = np.bincount(row, weights=blocks, minlength=len(demand)).astype(np.int64)
    return Segments(row, last_row, blocks, rank), start, seen


def _first_blocks(row: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Segment -> the number of blocks of its request in the segments before it; segments are in the order of rows."""
    before = np.cumsum(blocks) - blocks
    first = np.flatnonzero(np.diff(row, prepend=-1))
    return before - np.repeat(before[first], np.diff(first, append=len(row)))


def _paths(demand: BlockDemand, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hashed blocks of requests, end to end, and their offsets."""
    counts = demand.full[rows].astype(np.int64)
    offsets = offsets_of(counts)
    if len(rows) == len(demand) and offsets[-1] == len(demand.ids) and (np.diff(rows) == 1).all():
        return demand.ids, offsets
    return demand.ids[numbering.ranges(demand.start[rows], counts)], offsets


def _seen(columns: Columns, order: np.ndarray) -> np.ndarray:
    """Request -> leading blocks that a request before it in the order has in its prompt."""
    seen = np.zeros(len(columns), dtype=np.int64)
    whole = len(order) == len(columns) and (np.diff(order) == 1).all()
    seen[order] = unlimited_hits(columns if whole else columns.take(order))
    return seen


def _usable(simulation: Simulation, demand: BlockDemand):
    """A function from blocks that are in an unlimited cache to those of them that the engine hits."""
    row = engines.find(simulation.setting.engine)
    chunk = 1 if simulation.setting.bound else max(1, row.chunk_tokens // demand.trace.block_size)
    return lambda blocks: np.minimum(blocks, demand.limit) // chunk * chunk


def _with_groups(simulation: Simulation, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the cache groups of a model hit without eviction: on one instance, and on the instance of each request."""
    on_one = _unlimited(simulation, order)
    if _instances(simulation) == 1:
        return on_one, on_one
    instance, there = instance_of(simulation), np.zeros_like(on_one)
    for number in range(_instances(simulation)):
        rows = order[instance[order] == number]
        there[rows] = _unlimited(simulation, rows)[rows]
    return on_one, there


def _unlimited(simulation: Simulation, rows: np.ndarray) -> np.ndarray:
    """Request -> blocks that the engine hits without eviction, if it serves only these rows, one at a time."""
    trace = simulation.trace
    if not len(rows):  # an instance without requests
        return np.zeros(len(trace), dtype=np.int64)
    columns = trace.take(rows)
    columns.timestamp = np.arange(len(rows), dtype=np.float64)
    part = Trace.from_columns(replace_columns(columns, dependencies=None), block_size=trace.block_size, tail=trace.tail)
    hits = np.zeros(len(trace), dtype=np.int64)
    hits[rows] = run(without_eviction(simulation.setting, part), part).hit_blocks
    return hits
