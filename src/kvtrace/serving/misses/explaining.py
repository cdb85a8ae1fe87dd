"""Simulate one setting on a trace, and explain each prompt token that was not a hit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Unpack, cast

from ..._base.errors import UsageError
from ...cache.engines import non_default
from ...cache.layout import CacheLayout
from ...cache.simulation import EngineOptions
from ...trace.columns import require_trace
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, require_known
from ..closed_loop import ClosedLoop
from ..schedulers.base import Scheduler, Tier
from ..simulation import DynamoCost, StepCost
from .causes import causes_of
from .explanation import Explanation
from .setup import Setup


def explain(
    trace: Trace,
    capacity: int | None = None,
    policy: str | type = "lru",
    *,
    engine: str = "reference",
    mode: str = "block",
    schedule: str | None = None,
    tiers: Mapping[str, int] | None = None,
    lower: Sequence[Tier] = (),
    inclusive: bool = False,
    ttl: str | None = None,
    instances: int | None = None,
    router: str | None = None,
    router_seed: int = 0,
    cost: StepCost | DynamoCost | None = None,
    scheduler: Scheduler | None = None,
    loop: ClosedLoop | None = None,
    layout: CacheLayout | None = None,
    domains: str | None = None,
    warm_up: int = 0,
    on_progress: Callable[[int], None] | None = None,
    **engine_options: Unpack[EngineOptions],
) -> Explanation:
    """Simulate a prefix cache on a trace, and give each prompt token exactly one cause.

    Args:
        trace: The trace.
        capacity: Blocks that the cache holds; None with tiers.
        policy, engine, mode, schedule, engine_options: As in `simulate`.
        tiers: Name -> capacity in blocks, the first tier first, in place of a capacity.
        lower: With a cost: the tiers of an instance below the first one.
        inclusive: A tier also holds the blocks of the tiers above it.
        ttl: Blocks that were not used for this time expire, such as "5m": the policy ttl.
        instances, router, router_seed: Instances behind a router, as in `simulate_all`.
        cost, scheduler, loop: Serve the requests in simulated time, as in `simulate_serving`.
        layout: The cache groups of a hybrid model.
        domains: Isolation domains, as in `in_domains`; None keeps those of the trace apart, if it has any.
        warm_up: The first requests, which totals leave out.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The causes of all prompt tokens: in total, over time, by session and by request. docs/serving/explain.md
        defines them.

    Raises:
        UsageError: An argument is not valid.
        InputError: The ids do not form a forest.
        UnknownError: Shared prefixes are unknown, or output lengths that the setting needs.

    >>> from kvtrace.trace.building import toy
    >>> explain(toy("0 1", "2 3", "0 1"), 2)
    Explanation(6 prompt tokens, hit=0.0000, possible=0.3333, largest miss: first_use=0.6667)
    """
    require_trace(trace)
    require_known(trace, trace.meta, "why prompt tokens were not hits", PREFIXES)
    options = cast(EngineOptions, dict(non_default(engine_options)))
    if ttl is not None:
        if policy != "lru":
            raise UsageError(f"ttl is the policy ttl:{ttl}, which cannot be combined with {policy!r}. Leave out one.")
        policy = f"ttl:{ttl}"
    return explain_setup(
        trace,
        Setup(
            capacity, policy, engine, mode, schedule, tiers, lower, inclusive, instances, router, router_seed, cost,
            scheduler, loop, layout, domains, warm_up, options,
        ),
        on_progress,
    )  # fmt: skip


def explain_setup(trace: Trace, setup: Setup, on_progress: Callable[[int], None] | None = None) -> Explanation:
    """Simulate a setup on a trace, and explain the simulation."""
    simulation = setup.simulate(trace, on_progress)
    return Explanation(simulation, causes_of(simulation, None if setup.loop else trace), trace, setup)
