"""Everything that decides a simulation but the trace, so that it can be simulated again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..._base.errors import UsageError
from ...cache.layout import CacheLayout
from ...cache.simulation import EngineOptions, Simulation
from ...trace.domains import MERGE, in_domains
from ...trace.trace import Trace
from ..closed_loop import ClosedLoop
from ..schedulers.base import Scheduler, Tier
from ..simulation import DynamoCost, StepCost
from ..simulations import simulate_all


@dataclass(frozen=True)
class Setup:
    """One setting of a cache, its instances and its times: the options of `explain`, which describes the fields."""

    capacity: int | None = None
    policy: str | type = "lru"
    engine: str = "reference"
    mode: str = "block"
    schedule: str | None = None
    tiers: Mapping[str, int] | None = None
    lower: Sequence[Tier] = ()
    inclusive: bool = False
    instances: int | None = None
    router: str | None = None
    router_seed: int = 0
    cost: StepCost | DynamoCost | None = None
    scheduler: Scheduler | None = None
    loop: ClosedLoop | None = None
    layout: CacheLayout | None = None
    domains: str | None = None
    warm_up: int = 0
    engine_options: EngineOptions = field(default_factory=EngineOptions)

    @property
    def is_routed(self) -> bool:
        """Whether a router has a choice."""
        return (self.instances or 1) > 1

    @property
    def has_tiers(self) -> bool:
        """Whether there are tiers below the first one."""
        return bool(self.tiers or self.lower)

    def simulate(self, trace: Trace, on_progress: Callable[[int], None] | None = None) -> Simulation:
        """The simulation of a trace, which may have isolation domains.

        Raises:
            UsageError: The options do not fit together.

        >>> from kvtrace.trace.building import toy
        >>> Setup(2).simulate(toy("0 1", "2 3", "0 1")).hits.hit_blocks
        0
        """
        if (self.capacity is None) == (self.tiers is None):
            raise UsageError("Give either a capacity or tiers.")
        if self.loop is not None and trace.domain is not None and self.domains != MERGE:
            raise UsageError('explain does not support isolation domains in a closed loop. Try domains="merge".')
        done = simulate_all(
            in_domains(trace, self.domains), None if self.capacity is None else [self.capacity], [self.policy],
            engines=[self.engine], layouts=None if self.layout is None else {self.engine: self.layout}, mode=self.mode,
            schedule=self.schedule, tiers=self.tiers, lower=self.lower, inclusive=self.inclusive,
            instances=self.instances, routers=None if self.router is None else [self.router],
            router_seed=self.router_seed, cost=self.cost,
            schedulers=None if self.scheduler is None else {self.engine: self.scheduler}, loop=self.loop, gap=False,
            warm_up=self.warm_up, workers=1, on_progress=on_progress, **self.engine_options,
        )  # fmt: skip
        return done.runs[-1]  # with a loop, the open one comes first

    def with_more_blocks(self, blocks: int) -> Setup:
        """The setup with so many blocks more: in the lowest tier, if there are tiers.

        >>> Setup(4).with_more_blocks(3).capacity, Setup(tiers={"hbm": 2, "dram": 8}).with_more_blocks(3).tiers
        (7, {'hbm': 2, 'dram': 11})
        """
        if self.lower:
            last = self.lower[-1]
            return replace(self, lower=(*self.lower[:-1], replace(last, capacity=last.capacity + blocks)))
        if self.tiers:
            name, size = list(self.tiers.items())[-1]
            return replace(self, tiers={**self.tiers, name: size + blocks})
        assert self.capacity is not None
        return replace(self, capacity=self.capacity + blocks)
