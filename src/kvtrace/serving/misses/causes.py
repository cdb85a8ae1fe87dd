"""One cause for each prompt token of a simulation: where a request's path of blocks stopped hitting, and why.

A cause is the range between two depths: hits <= what tiers of all instances hold <= what the same instance could hit
without eviction <= what one instance for all requests could hit <= what was computed before in the same isolation
domain <= ... in any domain. Requests count in the order in which the engine looked them up.

The definitions are those of docs/serving/explain.md. Twin: tests/reference/misses.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ..._base.arrays import offsets_of
from ..._base.units import milliseconds
from ..._native import numbering
from ..._native.recency import RecencyList
from ...analysis.reuse import Segments
from ...cache import engines
from ...cache.demand import BlockDemand, block_demand
from ...cache.simulation import Simulation, run
from ...cache.tiered import TieredSimulation
from ...trace.columns import Columns, replace_columns
from ...trace.hits import leading_tokens, unlimited_hits
from ...trace.trace import Trace
from ..instances import FleetSimulation, anywhere_hits
from ..models.possible_hits import without_eviction
from ..serving_run import FIRST_TIER, ServingRun


@dataclass(frozen=True, eq=False)
class Depths:
    """Request -> leading blocks that could have hit, int64; each field is at least the one before it."""

    hits: np.ndarray  # as simulated
    in_tiers: np.ndarray  # in a tier of any instance, with tiers that instances share; else as `hits`
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
    if _instances(simulation) > 1 or demand.mode != "block" or demand.trace is not own or demand.drafting:
        seen = _seen(own, order)
    usable = _usable(simulation, demand)
    if simulation.setting.layout is None:
        seen_on_one = seen
        if demand.drafting:  # its blocks have names of their own
            seen_on_one = seen_there if _instances(simulation) == 1 else _segments(demand, [order])[2]
        on_one, on_instance = usable(seen_on_one), usable(seen_there)
    else:
        on_one, on_instance = _with_groups(simulation, order)
    on_instance = np.maximum(hits, on_instance)
    on_one = np.maximum(on_instance, on_one)
    in_tiers = hits
    if isinstance(simulation, FleetSimulation) and simulation.sources is not None:
        in_tiers = np.maximum(hits, np.minimum(usable(anywhere_hits(simulation)), on_one))
        on_instance = np.maximum(in_tiers, on_instance)
    in_domain = np.maximum(on_one, seen)
    in_any = in_domain if trace.domain is None else np.maximum(in_domain, _seen(trace, order))
    return Depths(hits, in_tiers, on_instance, on_one, in_domain, in_any, segments, start)


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
    instance, count = instance_of(simulation)[order], _instances(simulation)
    return _segments(demand, [order] if count == 1 else [order[instance == number] for number in range(count)])


def _segments(demand: BlockDemand, orders: list[np.ndarray]):
    """The segments of some requests, in a recency list for each order, their first blocks, and the blocks in all."""
    parts, names = [], demand.blocks - int(demand.grown.sum())
    for rows in orders:
        recency = RecencyList(len(rows), names)
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
    dropped = int(demand.drafting is not None and not demand.drafting.needs_next)
    return lambda blocks: np.maximum(np.minimum(blocks, demand.limit) - dropped, 0) // chunk * chunk


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


CAUSES = {
    "hit": "were in the cache",
    "in_flight": "were being computed for another request",
    "other_tier": "were in a tier of another instance that theirs cannot read",
    "evicted": "were evicted",
    "expired": "had expired",
    "other_instance": "were cached by another instance only",
    "rounding": "repeat, but engines hit whole blocks and compute the last token",
    "other_domain": "were cached in another domain only",
    "first_use": "were new",
    "not_served": "belong to requests that were not served",
}  # cause -> how its tokens are described: "12,345 prompt tokens were evicted"


@dataclass(frozen=True, eq=False)
class Causes:
    """The tokens of each cause, and how far evicted and expired blocks missed."""

    tokens: dict[str, np.ndarray]  # cause -> request -> prompt tokens, int64; they add up to the prompt
    tiers: dict[str, np.ndarray]  # tier -> request -> tokens that hit in it; they add up to `tokens["hit"]`
    evicted: Misses  # of the requests after the warm-up
    expired_gap_ms: np.ndarray  # segment of expired blocks after the warm-up -> time since their last use
    expired_tokens: np.ndarray


@dataclass(frozen=True, eq=False)
class Misses:
    """Evicted blocks in segments: neighbouring blocks of one request, with one rank after another."""

    request: np.ndarray  # segment -> its request
    missed_by: np.ndarray  # segment -> blocks that LRU would have needed more for its first block; the others follow
    blocks: np.ndarray  # segment -> blocks
    tokens: np.ndarray  # segment -> tokens; only the last block of a prompt can have fewer than a whole one
    block_size: int

    @cached_property
    def recovered(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of further blocks in ascending order, and the tokens that LRU would hit with as many more.

        >>> Misses(*(np.array([n]) for n in (0, 5, 3, 44)), block_size=16).recovered
        (array([5, 6, 7]), array([16, 32, 44]))
        """
        if not len(self.blocks):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        low, stop = int(self.missed_by.min()), int((self.missed_by + self.blocks).max())
        rises = np.bincount(self.missed_by - low, minlength=stop - low + 1)
        rises -= np.bincount(self.missed_by + self.blocks - low, minlength=stop - low + 1)
        each = np.cumsum(rises)[:-1] * self.block_size  # tokens of the blocks that missed by low, low + 1, ...
        last = self.missed_by + self.blocks - 1 - low
        np.subtract.at(each, last, self.blocks * self.block_size - self.tokens)
        at = np.flatnonzero(each)
        return at + low, np.cumsum(each[at])

    def tokens_with(self, further: int, requests: int) -> np.ndarray:
        """Request -> the tokens that LRU would hit with so many blocks more; `requests` is their number.

        >>> Misses(*(np.array([n]) for n in (0, 5, 3, 44)), block_size=16).tokens_with(6, 2)
        array([32,  0])
        """
        blocks = np.clip(further - self.missed_by + 1, 0, self.blocks)
        tokens = np.minimum(blocks * self.block_size, self.tokens)
        return np.bincount(self.request, weights=tokens, minlength=requests).astype(np.int64)


def causes_of(simulation: Simulation, trace: Trace | None = None) -> Causes:
    """The cause of each prompt token.

    Args:
        simulation: The simulation, of any kind.
        trace: The trace that was given to it, if it has isolation domains; the trace of a simulation has none.

    Returns:
        The tokens of each cause and request. The requests are those of `simulation.trace`.

    Raises:
        InputError: The ids do not form a forest.

    >>> from kvtrace.cache.simulation import simulate
    >>> from kvtrace.trace.building import toy
    >>> causes = causes_of(simulate(toy("0 1", "2 3", "0 1"), 2))
    >>> {name: tokens.tolist() for name, tokens in causes.tokens.items() if tokens.any()}
    {'evicted': [0, 0, 2], 'first_use': [2, 2, 0]}
    """
    depths = depths_of(simulation, simulation.trace if trace is None else trace)
    own = simulation.trace
    hits, in_tiers, there, any_instance, domain, anywhere = (
        leading_tokens(own, blocks)
        for blocks in (depths.hits, depths.in_tiers, depths.on_instance, depths.on_one, depths.in_domain, depths.in_any)
    )
    rest = own.input_length - anywhere
    is_new = depths.in_any < own.prompt_blocks  # else the rest has no block, and nobody knows whether it repeats
    missed = _missed_segments(simulation, depths)
    per_request = partial(_sum_by_request, missed, len(own))
    tokens = {
        "hit": hits, "in_flight": per_request(missed.in_flight), "evicted": per_request(missed.evicted),
        "other_tier": in_tiers - hits, "expired": per_request(missed.expired), "other_instance": any_instance - there,
        "rounding": domain - any_instance + np.where(is_new, 0, rest), "other_domain": anywhere - domain,
        "first_use": np.where(is_new, rest, 0), "not_served": np.zeros_like(rest),
    }  # fmt: skip
    not_served = np.ones(len(own), dtype=bool)
    not_served[lookup_order(simulation)] = False
    for name, values in tokens.items():
        values[not_served] = own.input_length[not_served] if name == "not_served" else 0
    expired = missed.expired & (missed.request >= simulation.warm_up)
    return Causes(
        tokens, _by_tier(simulation, hits), missed.misses(simulation), missed.gap_ms[expired], missed.tokens[expired]
    )


@dataclass(frozen=True, eq=False)
class _MissedSegments:
    """Segments of blocks that would hit without eviction, and did not; one value for each segment."""

    request: np.ndarray
    blocks: np.ndarray
    tokens: np.ndarray
    rank: np.ndarray  # of the first block in the recency list of the instance
    gap_ms: np.ndarray  # since the request that used the blocks last was looked up
    in_flight: np.ndarray
    expired: np.ndarray

    @property
    def evicted(self) -> np.ndarray:
        return ~(self.in_flight | self.expired)

    def misses(self, simulation: Simulation) -> Misses:
        at = self.evicted & (self.request >= simulation.warm_up)
        missed_by = self.rank[at] - capacity_of(simulation)
        return Misses(self.request[at], missed_by, self.blocks[at], self.tokens[at], simulation.trace.block_size)


def _missed_segments(simulation: Simulation, depths: Depths) -> _MissedSegments:
    segments, trace = depths.segments, simulation.trace
    first = np.maximum(depths.start, depths.in_tiers[segments.row])
    stop = np.minimum(depths.start + segments.blocks, depths.on_instance[segments.row])
    some = stop > first
    request, last_request, first, stop = segments.row[some], segments.last_row[some], first[some], stop[some]
    tokens = leading_tokens(trace, stop, request) - leading_tokens(trace, first, request)
    looked_up_ms, in_flight = trace.timestamp, np.zeros(len(request), dtype=bool)
    if isinstance(simulation, ServingRun):
        looked_up_ms = simulation.started_s * 1000
        first_s = np.nan_to_num(simulation.first_s, nan=np.inf)
        # equal times: an engine may publish blocks a step after they are computed
        in_flight = first_s[last_request] >= simulation.started_s[request]
    gap_ms = looked_up_ms[request] - looked_up_ms[last_request]
    expired = ~in_flight & (gap_ms > lifetime_ms(simulation.setting.policy))
    rank = segments.rank[some] + first - depths.start[some]
    return _MissedSegments(request, stop - first, tokens, rank, gap_ms, in_flight, expired)


def _sum_by_request(segments: _MissedSegments, requests: int, which: np.ndarray) -> np.ndarray:
    sums = np.bincount(segments.request[which], weights=segments.tokens[which], minlength=requests)
    return sums.astype(np.int64)


def lifetime_ms(policy: str) -> float:
    """The time after which unused blocks expire.

    >>> lifetime_ms("ttl:5m"), lifetime_ms("lru")
    (300000.0, inf)
    """
    name, _, text = policy.partition(":")
    return milliseconds(text) if name == "ttl" else np.inf


def capacity_of(simulation: Simulation) -> int:
    """The blocks of one instance, in all tiers, in blocks of the trace."""
    if isinstance(simulation, TieredSimulation):
        sizes = [size for _, size in simulation.tiers]
        return sum(sizes) if simulation.exclusive else sizes[-1]
    if isinstance(simulation, FleetSimulation) and simulation.sources is not None:
        return sum(tier.capacity for tier in simulation.sources.tiers)
    lower = sum(tier.capacity for tier in simulation.tiers) if isinstance(simulation, ServingRun) else 0
    size = simulation.trace.block_size
    return simulation.setting.capacity_tokens(size) // size + lower


def _by_tier(simulation: Simulation, hit_tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Tier -> request -> hit tokens. A prompt's last block, which may be partial, counts for its lowest tier."""
    if isinstance(simulation, FleetSimulation) and simulation.sources is not None:
        sources = simulation.sources
        blocks = dict(zip((tier.name for tier in sources.tiers), sources.hits, strict=True))
    elif isinstance(simulation, TieredSimulation) and simulation.tier_hits is not None:
        blocks = dict(zip((name for name, _ in simulation.tiers), simulation.tier_hits, strict=True))
    elif isinstance(simulation, ServingRun) and simulation.lower_tier_hits is not None:
        lower = simulation.lower_tier_hits
        blocks = {FIRST_TIER: simulation.hit_blocks - lower.sum(axis=0)}
        blocks |= {tier.name: hits for tier, hits in zip(simulation.tiers, lower, strict=True)}
    else:
        return {FIRST_TIER: hit_tokens}
    ends = np.cumsum(np.array(list(blocks.values()), dtype=np.int64), axis=0)
    up_to = np.array([leading_tokens(simulation.trace, end) for end in ends])
    return dict(zip(blocks, np.diff(up_to, axis=0, prepend=0), strict=True))
