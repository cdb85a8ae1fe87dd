"""A cache in tiers, as in `hbm=5000,dram=50000`: the tier that each hit block came from.

Exclusive: a block is in one tier. A block that the first tier evicts goes to the next one; a block that a request uses
comes back to the first. Inclusive: each tier is written through and sees every use, so it is a cache of its own; a hit
counts for the first tier that has the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypedDict

import numpy as np

from .._base.errors import UsageError
from .._base.results import column
from ..trace.domains import in_domains
from ..trace.trace import Trace
from .demand import BlockDemand, block_demand
from .policies import make, name_of
from .simulation import Setting, Simulation, advance_all, require_room, run, whole_blocks
from .tiers import Tier


class TierDict(TypedDict):
    """One tier of `TieredSimulation.to_dict`."""

    name: str
    capacity: int
    hit_blocks: int


def hits_by_tier(tiers: list[TierDict]) -> dict[tuple[int, str], str]:
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
    contexts = [Context(demand.blocks, capacity, demand.trace, demand) for capacity, _ in sizes]
    first, *others = (make(policy, context) for (_, policy), context in zip(sizes, contexts, strict=True))
    for (_, policy), built in zip(sizes, (first, *others), strict=True):
        if built.expires:
            raise UsageError(f"Policy {policy} lets blocks expire, which tiers do not support. Try --policy lru.")
    return Tiers(contexts[0], demand, first, others)


def _exclusive(trace, sizes, setting, demand: BlockDemand, on_progress):
    engine = tiered(setting, demand, [Tier(name, capacity) for name, capacity in sizes[1:]])
    engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(trace))
    advance_all(engine, len(demand), on_progress)
    hits, lower_tier_hits = engine.hits.astype(np.int64), engine.tier_hits.astype(np.int64)
    engine.close()
    per_tier = np.vstack([hits - lower_tier_hits.sum(0), lower_tier_hits])
    return TieredSimulation(setting, trace, hits, engine.dropped, engine.early_frees, 0, sizes, True, per_tier)


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
