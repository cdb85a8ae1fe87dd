"""A cache in tiers, as in `hbm=5000,dram=50000`: the tier that each hit block came from.

Exclusive: a block is in one tier. A block that the first tier evicts goes to the next one; a block that a request uses
comes back to the first. Inclusive: each tier is written through and sees every use, so it is a cache of its own; a hit
counts for the first tier that has the block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np

from .._base.errors import UsageError
from .._base.results import column
from ..trace.domains import in_domains
from ..trace.trace import Trace
from .demand import BlockDemand, block_demand
from .policies import POLICIES, make, name_of
from .simulation import Setting, Simulation, advance_all, build, require_room, run, whole_blocks
from .tiers import SCOPES, Tier, TierCopies, TierScope, require_fields


class TierDict(TypedDict):
    """One tier of `TieredSimulation.to_dict`."""

    name: str
    capacity: int
    hit_blocks: int


class SharedTierDict(TierDict, total=False):
    """One tier of `FleetSimulation.to_dict`; the tiers below the first one have the other keys."""

    scope: TierScope
    copies: TierCopies
    loaded_blocks: int
    peers_loaded_blocks: int
    stored_blocks: int
    evicted_blocks: int


def hits_by_tier(tiers: Sequence[TierDict]) -> dict[tuple[int, str], str]:
    """Where the hits of each tier are in a row -> the heading of their column.

    >>> hits_by_tier([{"name": "hbm", "capacity": 5, "hit_blocks": 2}])
    {(0, 'hit_blocks'): 'in hbm'}
    """
    return {(at, "hit_blocks"): f"in {tier['name']}" for at, tier in enumerate(tiers)}


@dataclass(frozen=True, eq=False, repr=False)
class TieredSimulation(Simulation):
    """The result of a cache in tiers on a trace; `evictions` counts the blocks that left the last tier."""

    tiers: tuple[tuple[str, int], ...] = ()  # name and capacity in blocks, the first tier first
    exclusive: bool = True
    tier_hits: np.ndarray | None = None  # (tier, request) -> hit blocks that came from the tier

    def _headline(self) -> str:
        return f"{super()._headline()}, tiers {', '.join(f'{name}={size:,}' for name, size in self.tiers)}"

    def _columns(self) -> dict[str, np.ndarray]:
        assert self.tier_hits is not None
        tiers = zip(self.tiers, self.tier_hits, strict=True)
        return super()._columns() | {f"{name}_hit_blocks": hits for (name, _), hits in tiers}

    @property
    @column("in each tier", ",", place=12, parts=hits_by_tier, key="tiers")
    def _hits_of_tiers(self) -> list[TierDict]:
        """The hit blocks of each tier, the first one first."""
        assert self.tier_hits is not None
        rows = slice(self.warm_up, None)
        return [
            {"name": name, "capacity": capacity, "hit_blocks": int(hits[rows].sum())}
            for (name, capacity), hits in zip(self.tiers, self.tier_hits, strict=True)
        ]

    @property
    @column(key="exclusive")
    def _is_exclusive(self) -> bool:
        """Whether a block is in one tier at a time."""
        return self.exclusive


def simulate_tiers(
    trace: Trace,
    tiers: dict[str, int],
    policy: str | type = "lru",
    *,
    exclusive: bool = True,
    setting: Setting | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> TieredSimulation:
    """Run a trace through a cache in tiers and count from which tier each hit came.

    Args:
        trace: The trace.
        tiers: Name -> capacity in blocks, the first tier first; two or more.
        policy: The eviction policy of each tier.
        exclusive: A block is in one tier at a time; else each tier also holds what is in the tiers before it.
        setting: Gives mode and schedule; its capacity and policy are not used.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The hit blocks of each request, in total and by tier.

    Raises:
        UsageError: As in `simulate`; also if inclusive tiers do not grow.

    >>> from kvtrace.trace.building import toy
    >>> result = simulate_tiers(toy("0 1", "2 3", "0 1"), {"hbm": 2, "dram": 2})
    >>> result.hit_blocks.tolist(), result.tier_hits.tolist()
    ([0, 0, 2], [[0, 0, 0], [0, 0, 2]])
    """
    trace = in_domains(trace)
    tiers = {name: whole_blocks(capacity) for name, capacity in tiers.items()}
    if len(tiers) < 2 or min(tiers.values()) < 1:
        raise UsageError("--tiers needs two tiers or more of at least 1 block each. Try --tiers hbm=5000,dram=50000.")
    sizes = tuple(tiers.items())
    setting = replace(setting or Setting(1), policy=name_of(policy), capacity=sizes[0][1])
    if setting.engine == "sglang":
        return _hicache(trace, sizes, setting, exclusive, on_progress)
    demand = block_demand(trace, setting.mode)
    require_room(setting.capacity, demand)
    run_tiers = _exclusive if exclusive else _inclusive
    return run_tiers(trace, sizes, setting, demand, on_progress)


def tiered(setting: Setting, demand: BlockDemand, lower: Sequence[Tier]):
    """Build the engine of exclusive tiers; UsageError if tiers do not support the engine or policy of the setting.

    A lower tier without a policy has that of the setting.
    """
    from .core.pool import Tiers
    from .policies.base import Context

    if setting.engine != "reference" or setting.engine_options or setting.bound:
        raise UsageError(
            "Tiers support --engine reference with its default options, and no upper bound as a policy. "
            "Leave out --engine, --capacity-counts, --pool, belady and unlimited."
        )
    sizes = [(setting.capacity, setting.policy), *((tier.capacity, tier.policy or setting.policy) for tier in lower)]
    for _, policy in sizes:
        _require_online(policy)
    contexts = [Context(demand.blocks, capacity, demand.trace, demand) for capacity, _ in sizes]
    first, *others = (make(policy, context) for (_, policy), context in zip(sizes, contexts, strict=True))
    for (_, policy), built in zip(sizes, (first, *others), strict=True):
        if built.expires:
            raise UsageError(f"Policy {policy} lets blocks expire, which tiers do not support. Try --policy lru.")
    return Tiers(contexts[0], demand, first, others)


@dataclass(frozen=True)
class TierTraffic:
    """What moved over the link of a tier below the first, in blocks; `stored` = `evicted` + `moved` + `resident`."""

    loaded: int = 0  # to the instances, for hits; of a tier with blocks of its own, whole ones
    peers_loaded: int = 0  # of these: from the tier of another instance, or of another host
    stored: int = 0
    evicted: int = 0
    moved: int = 0  # taken out by the hits of an exclusive tier
    resident: int = 0  # at the end


@dataclass(frozen=True, eq=False)
class HitSources:
    """Where hits came from: the tiers of a simulation, their hits, and what moved over their links.

    >>> tiers = Tier("hbm", 2), Tier("pool", 9, scope="cluster", copies="write-through")
    >>> print(HitSources(tiers, np.array([[1], [2]]), (TierTraffic(), TierTraffic(loaded=2, stored=4))))
    hbm=2, pool=9@cluster
    """

    tiers: tuple[Tier, ...]  # the first one first
    hits: np.ndarray  # (tier, request) -> hit blocks that came from the tier
    traffic: tuple[TierTraffic, ...]  # of each tier; the first one has none
    per_host: int = 1  # instances that share the tier of a host

    def __str__(self) -> str:
        scopes = ["" if tier.scope == "rank" else f"@{tier.scope}" for tier in self.tiers]
        return ", ".join(f"{tier.name}={tier.capacity:,}{at}" for tier, at in zip(self.tiers, scopes, strict=True))

    def columns(self) -> dict[str, np.ndarray]:
        """The hit blocks of each request, by tier."""
        return {f"{tier.name}_hit_blocks": hits for tier, hits in zip(self.tiers, self.hits, strict=True)}

    def to_list(self, warm_up: int = 0) -> list[SharedTierDict]:
        """One dictionary for each tier: its hits after the warm-up, and what moved in the whole run, in blocks."""
        listed: list[SharedTierDict] = []
        for tier, hits, moved in zip(self.tiers, self.hits, self.traffic, strict=True):
            listed.append({"name": tier.name, "capacity": tier.capacity, "hit_blocks": int(hits[warm_up:].sum())})
            if tier.copies is not None:
                listed[-1] |= {
                    "scope": tier.scope, "copies": tier.copies, "loaded_blocks": moved.loaded,
                    "peers_loaded_blocks": moved.peers_loaded, "stored_blocks": moved.stored,
                    "evicted_blocks": moved.evicted,
                }  # fmt: skip
        return listed


MODELLED = {"policy", "scope", "copies", "peers", "block_tokens"}  # fields of a tier, without times


class SharedTiers:
    """The first tiers of instances and the places below them, compiled; after a run, what moved.

    A tier of 0 blocks is none. `in_time` is the class of the first tiers of a simulation in time. Raises UsageError for
    tiers that are not modelled.
    """

    def __init__(
        self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int,
        *, inclusive: bool = False, in_time: type | None = None,
    ) -> None:  # fmt: skip
        from .core.places import Places

        first, *lower = tiers
        self.tiers = (first, *(_with_copies(tier, inclusive, demand.trace.block_size) for tier in lower))
        self.groups = {"rank": 1, "host": per_host, "cluster": instances}
        _require_order(self.tiers, setting, {"latency_s"} if in_time else set())
        self.engines = [_first_tier(setting, demand, in_time) for _ in range(instances)]
        self.active = [number for number, tier in enumerate(self.tiers) if number and tier.capacity]
        places: list[Any] = []
        own = np.zeros((len(self.active), instances), dtype=np.int32)
        above: list[Any] = list(self.engines)  # instance -> what evicts to its next place
        for row, number in enumerate(self.active):
            tier = self.tiers[number]
            own[row] = len(places) + np.arange(instances) // self.groups[tier.scope]
            copies = _copies(tier, straight=row == 0 and first.capacity == 0)
            places += [_place(tier, copies, setting, demand) for _ in range(int(own[row].max()) + 1 - len(places))]
            for instance, place in enumerate(own[row].tolist()):
                if copies != "write-through":
                    above[instance].below = places[place]
                above[instance] = places[place]
        self.own = own
        self.places = Places(demand, places, own, [self.tiers[number].peers for number in self.active])

    def watch(self) -> None:
        """Remember in the run that follows how far tiers had the path of each request."""
        self.places.watch(self.engines)

    def elsewhere(self) -> np.ndarray:
        """Request -> leading blocks that a tier of any instance had. Needs `watch` before the run."""
        return self.places.elsewhere.astype(np.int64)

    def sources(self) -> HitSources:
        """Where the hits of each request came from, and what moved over the links."""
        lower_hits = self.places.tier_hits.astype(np.int64)
        hits = np.zeros((len(self.tiers), len(self.places.hits)), dtype=np.int64)
        hits[self.active] = lower_hits
        hits[0] = self.places.hits - lower_hits.sum(0)
        return HitSources(self.tiers, hits, self._traffic(), self.groups["host"])

    def _traffic(self) -> tuple[TierTraffic, ...]:
        sums = [TierTraffic() for _ in self.tiers]
        for row, number in enumerate(self.active):
            places = [self.places.places[place] for place in np.unique(self.own[row])]
            names = ("loaded", "peers_loaded", "stored", "evicted", "moved", "size")
            sums[number] = TierTraffic(*(sum(place.chunk * getattr(place, name) for place in places) for name in names))
        return tuple(sums)

    @property
    def dropped(self) -> int:
        """The blocks that the lowest tier evicted."""
        if not self.active:
            return sum(engine.evictions for engine in self.engines)
        return self._traffic()[self.active[-1]].evicted


def _with_copies(tier: Tier, inclusive: bool, block_size: int) -> Tier:
    """The tier with its way of copies; UsageError for a block of its own that does not fit."""
    through = inclusive or tier.scope != "rank" or tier.block_tokens is not None
    copies = tier.copies or ("write-through" if through else "on-eviction")
    if tier.block_tokens is not None:
        if tier.block_tokens % block_size:
            raise UsageError(
                f"Tier {tier.name} has blocks of {tier.block_tokens} tokens, which are not whole blocks of the "
                f"trace, of {block_size}. Try {block_size * max(1, tier.block_tokens // block_size)}tokens."
            )
        if copies != "write-through":
            raise UsageError(f"Tier {tier.name} has blocks of its own, which needs write-through.")
    return replace(tier, copies=copies)


def _require_order(tiers: Sequence[Tier], setting: Setting, more: Collection[str] = ()) -> None:
    """UsageError for tiers that do not fit together, or to the engine of the setting."""
    from . import engines

    first, *lower = tiers
    require_fields([first], (), "The first tier")
    require_fields(lower, MODELLED | set(more), "Engine reference" if more else "A simulation without times")
    for tier in tiers:
        if whole_blocks(tier.capacity) < 0:
            raise UsageError(f"Tier {tier.name} must have 0 blocks or more.")
    for above, below in pairwise(tiers):
        if SCOPES.index(below.scope) < SCOPES.index(above.scope):
            raise UsageError(
                f"Tier {below.name} of a {below.scope} is below tier {above.name} of a {above.scope}. Put it above."
            )
    if setting.layout is not None or setting.drafting is not None or setting.engine == "lmcache":
        what = "engine lmcache" if setting.engine == "lmcache" else "cache groups and drafters"
        raise UsageError(f"Tiers that instances share do not support {what}.")
    if setting.bound:
        raise UsageError(f"Tiers do not support the upper bound {setting.policy}. Try another --policy.")
    evicts = next((tier for tier in lower if tier.capacity), None)
    if setting.engine != "reference" and first.capacity and evicts and evicts.copies != "write-through":
        engines.find(setting.engine)
        raise UsageError(
            f"Engine {setting.engine} has tiers with write-through here: what it evicts is not passed on. Try "
            f"{evicts.name}=...@write-through, or --engine reference."
        )


def _first_tier(setting: Setting, demand: BlockDemand, in_time: type | None = None) -> Any:
    """The cache of one instance."""
    from .core.engine import Engine
    from .core.places import FirstTier
    from .policies.base import Context

    if setting.capacity == 0:
        engine = Engine(Context(demand.blocks, 0, demand.trace, demand), demand)  # it holds nothing
    elif setting.engine != "reference":
        return build(setting, demand)
    else:
        options = dict(setting.engine_options)
        counts_all = options.get("capacity_counts", "total") == "total"
        if counts_all and in_time is None:
            require_room(setting.capacity, demand)
        context = Context(demand.blocks, setting.capacity, demand.trace, demand)
        policy, leaf_first = make(setting.policy, context), options.get("pool") == "leaf-first"
        engine = (in_time or FirstTier)(context, demand, policy, counts_all, leaf_first)
    engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(demand.trace))
    return engine


def _copies(tier: Tier, *, straight: bool) -> str:
    """When a place of a tier gets a block. `straight`: no tier above it holds anything, so each block comes at once."""
    if straight or tier.copies == "write-through":
        return "write-through"
    return "move" if tier.copies == "on-eviction" and tier.scope == "rank" else "write-back"


def _place(tier: Tier, copies: str, setting: Setting, demand: BlockDemand) -> Any:
    """One place of a tier."""
    from .core.places import Place
    from .policies.base import Context

    chunk = (tier.block_tokens or demand.trace.block_size) // demand.trace.block_size
    units = whole_blocks(tier.capacity) // chunk
    if units < 1:
        raise UsageError(f"Tier {tier.name} does not hold a block of {tier.block_tokens} tokens. Try {chunk} or more.")
    context = Context(demand.blocks, units, demand.trace, demand)
    name = tier.policy or (setting.policy if setting.engine == "reference" else "lru")
    _require_online(name)
    return Place(make(name, context), copies, chunk)


def _require_online(policy: str) -> None:
    """UsageError for an upper bound, which looks ahead, as the policy of a lower tier."""
    if (row := POLICIES.get(policy.partition(":")[0])) is not None and row.bound:
        raise UsageError(f"Policy {policy} is an upper bound, which a lower tier cannot have. Try lru.")


def _exclusive(trace, sizes, setting, demand: BlockDemand, on_progress):
    engine = tiered(setting, demand, [Tier(name, capacity) for name, capacity in sizes[1:]])
    return _run_engine(engine, trace, sizes, setting, True, on_progress)


def _run_engine(engine, trace, sizes, setting, exclusive, on_progress):
    engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(trace))
    advance_all(engine, len(trace), on_progress)
    hits, lower_tier_hits = engine.hits.astype(np.int64), engine.tier_hits.astype(np.int64)
    engine.close()
    per_tier = np.vstack([hits - lower_tier_hits.sum(0), lower_tier_hits])
    return TieredSimulation(setting, trace, hits, engine.dropped, engine.early_frees, 0, sizes, exclusive, per_tier)


def _hicache(trace, sizes, setting, exclusive, on_progress):
    """SGLang's own tiers: the device, its host memory, and a storage backend of its own."""
    if not exclusive:
        raise UsageError(NOT_INCLUSIVE)
    demand = block_demand(trace, *setting.demand_options)
    tiers = HicacheTiers(setting, demand, [Tier(name, capacity) for name, capacity in sizes], 1, 1)
    return _run_engine(tiers.engines[0], trace, sizes, setting, False, on_progress)


NOT_INCLUSIVE = "--inclusive is not an option of SGLang's tiers. Leave it out, or see --hicache-write-policy."


class HicacheTiers:
    """SGLang's HiCache on instances: their devices and host memories, and storage backends that they may share.

    As SharedTiers, without places: the engines serve the requests themselves. Raises UsageError for tiers that SGLang
    does not have.
    """

    places = None

    def __init__(
        self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int,
        *, inclusive: bool = False,
    ) -> None:  # fmt: skip
        from . import engines
        from .core.hicache import StoragePool
        from .engines.sglang import build_hicache
        from .policies.base import Context

        device, host, *pools = tiers
        if inclusive:
            raise UsageError(NOT_INCLUSIVE)
        require_fields([device], (), "The first tier")
        if host.scope != "rank":
            raise UsageError(
                f"SGLang brings the blocks of {host.name}=...@{host.scope} to host memory first. Put a tier of an "
                "instance above it: --tiers hbm=5000,dram=50000,pool=1M@cluster."
            )
        require_fields([host], (), "SGLang's host memory")
        require_fields(pools, {"scope"}, "SGLang's storage backend")
        if len(pools) > 1:
            raise UsageError("SGLang has three tiers at most: --tiers hbm=5000,dram=50000,pool=1M@cluster.")
        for tier in tiers:
            if whole_blocks(tier.capacity) < 1:
                raise UsageError(f"Tier {tier.name} must have at least 1 block with --engine sglang.")
        if setting.layout is not None or setting.drafting is not None or setting.bound:
            raise UsageError("SGLang's tiers are modelled for full attention, without a drafter or an upper bound.")
        options = dict(setting.engine_options)
        tree, how = (options.get(name, engines.DEFAULTS[name]) for name in ("tree", "hicache_write_policy"))
        engines.check(engines.find(setting.engine), setting.engine, setting.policy, options)
        require_room(device.capacity, demand)
        copies: TierCopies = "write-back" if how == "write_back" else "write-through"
        through: TierCopies = "write-through"
        self.tiers = (device, replace(host, copies=copies), *(replace(pool, copies=through) for pool in pools))
        group = {"rank": 1, "host": per_host, "cluster": instances}[pools[0].scope] if pools else 1
        self.pools = [StoragePool(demand.blocks, pool.capacity) for pool in pools for _ in range(0, instances, group)]
        self.engines = []
        for number in range(instances):
            context = Context(demand.blocks, device.capacity, demand.trace, demand)
            store = self.pools[number // group] if pools else None
            self.engines.append(
                build_hicache(
                    demand, context, host.capacity, setting.policy, pool=store, tree=tree, hicache_write_policy=how
                )
            )
        for engine in self.engines:
            schedule = setting.schedule
            engine.schedule(schedule.kind, int(schedule.value), schedule.ends(demand.trace))
        self.per_host = per_host

    def watch(self) -> None:
        """As of SharedTiers."""
        for engine in self.engines:
            engine.watch(self.engines)

    def elsewhere(self) -> np.ndarray:
        """As of SharedTiers."""
        hits = sum(engine.hits.astype(np.int64) for engine in self.engines)
        return np.maximum(hits, np.max([engine.elsewhere for engine in self.engines], axis=0))

    def sources(self) -> HitSources:
        """Where the hits of each request came from, and what moved over the links."""
        lower = sum(engine.tier_hits.astype(np.int64) for engine in self.engines)
        hits = sum(engine.hits.astype(np.int64) for engine in self.engines)
        names = ("loaded", "stored", "evicted", "resident")
        host, pool = (
            {name: sum(getattr(each, name) for each in held) for name in names}
            for held in ([engine.host_traffic for engine in self.engines], self.pools)
        )
        traffic = (TierTraffic(), TierTraffic(**host), TierTraffic(**pool))[: len(self.tiers)]
        return HitSources(self.tiers, np.vstack([hits - lower.sum(0), lower]), traffic, self.per_host)

    @property
    def dropped(self) -> int:
        """The blocks that the lowest tier evicted, or that left the device without a copy there is below."""
        if self.pools:
            return sum(pool.evicted for pool in self.pools)
        return sum(engine.dropped for engine in self.engines)


def lower_tiers(
    setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int, *, inclusive: bool
) -> SharedTiers | HicacheTiers:
    """The tiers of instances: SGLang's own, else generic ones. UsageError for tiers that are not modelled."""
    if setting.engine == "sglang" and len(tiers) > 1:
        return HicacheTiers(setting, demand, tiers, instances, per_host, inclusive=inclusive)
    return SharedTiers(setting, demand, tiers, instances, per_host, inclusive=inclusive)


def _inclusive(trace, sizes, setting, demand, on_progress):
    if any(lower <= upper for (_, upper), (_, lower) in pairwise(sizes)):
        raise UsageError(
            "With --inclusive each tier must be larger than the one before it. Try --tiers hbm=5000,dram=50000."
        )
    hits, tier_hits = np.zeros(len(trace), dtype=np.int64), []
    for _, capacity in sizes:
        result = run(replace(setting, capacity=capacity), trace, demand, on_progress)
        tier_hits.append(np.maximum(result.hit_blocks - hits, 0))
        hits = np.maximum(hits, result.hit_blocks)
    per_tier = np.array(tier_hits)
    return TieredSimulation(setting, trace, hits, result.evictions, result.early_frees, 0, sizes, False, per_tier)
