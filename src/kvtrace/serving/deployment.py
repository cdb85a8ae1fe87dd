"""Instances of a serving engine behind a router, as a simulation in time builds them: schedulers, caches, clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..cache.demand import BlockDemand, block_demand
from ..cache.simulation import Setting
from ..trace.trace import Trace
from .instances import make_router
from .schedulers.base import Scheduler, Tier
from .timeline import Timeline

CHUNK = 1 << 12  # requests between two reports of progress


class Cost(Protocol):
    """The time of a step: a StepCost or a DynamoCost."""

    def terms(self, cache_tokens: int) -> dict[str, float]:
        """The terms of the kernel, for a cache of so many tokens."""
        ...


@dataclass(frozen=True)
class Fleet:
    """Instances behind a router: what they are, before they have a trace."""

    cost: Cost
    setting: Setting
    scheduler: Scheduler
    instances: int
    router: str
    router_seed: int
    tiers: tuple[Tier, ...]
    prefetch: bool
    timelines: bool

    def deploy(self, trace: Trace, demand: BlockDemand | None = None) -> Deployed:
        """The compiled instances and their router, ready for the requests of a trace."""
        from .core.instance import Requests
        from .core.serving import DynamoRouter

        demand = demand or block_demand(trace, *self.setting.demand_options)
        tokens, output = self.scheduler.lengths(demand.trace)
        needs = self.scheduler.needs(demand, self.setting)
        requests = Requests(trace.timestamp / 1000, tokens, output, needs, _priorities(trace))
        engines = [self.scheduler.engine(self.setting, demand, self.tiers) for _ in range(self.instances)]
        terms = self.cost.terms(self.setting.capacity * trace.block_size)
        built = [self.scheduler.instance(engine, requests, terms, prefetch=self.prefetch) for engine in engines]
        if self.timelines:
            for one in built:
                one.watch()
        if self.router == "dynamo":
            chooser: Any = DynamoRouter(engines, requests, demand.blocks, trace.block_size, self.router_seed)
        else:
            chooser = make_router(trace, self.router, engines)
        return Deployed(self, requests, engines, built, chooser)


@dataclass(frozen=True)
class Deployed:
    """Compiled instances, their caches and their router; after a run, what it found."""

    fleet: Fleet
    requests: Any
    engines: list[Any]
    instances: list[Any]
    router: Any

    def results(self, rows: np.ndarray | slice = slice(None)) -> dict[str, Any]:
        """The fields of a ServingRun, except its trace, for some rows in their order."""
        fleet, outcomes, engines = self.fleet, self.requests.outcomes, self.engines
        lines = [Timeline.of(one.timeline) for one in self.instances] if fleet.timelines else []
        lower = sum(engine.tier_hits.astype(np.int64) for engine in engines)[:, rows] if fleet.tiers else None
        return {
            "setting": fleet.setting, "hit_blocks": sum(engine.hits.astype(np.int64) for engine in engines)[rows],
            "evictions": sum(engine.evictions for engine in engines), "early_frees": 0, "router": fleet.router,
            "instance": outcomes["instance"][rows], "instances": fleet.instances,
            "started_s": outcomes["started"][rows], "first_s": outcomes["first"][rows],
            "ended_s": outcomes["ended"][rows], "cached_tokens": outcomes["cached"][rows],
            "busy_s": tuple(one.busy for one in self.instances), "lower_tier_hits": lower,
            "scheduler": fleet.scheduler, "steps": tuple(one.steps for one in self.instances),
            "preemptions": outcomes["preempted"][rows], "recomputed_tokens": outcomes["recomputed"][rows],
            "timelines": tuple(lines), "tiers": fleet.tiers,
        }  # fmt: skip


def _priorities(trace: Trace) -> np.ndarray | None:
    """The column `priority` of a trace, if it has one of whole numbers."""
    column = trace.extra.get("priority")
    return column if isinstance(column, np.ndarray) and column.dtype.kind in "iu" else None
