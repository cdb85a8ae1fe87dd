"""Two schedulers that no engine has: one that reserves all blocks, and one that takes the recorded service times.

The first admits a request if all blocks that the request may need are free, so it never preempts; engines admit more
requests, and preempt some of them. It works with every cache. The second checks a recording, and what the closed loop
makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from ..._base.errors import UsageError
from ...cache.demand import BlockDemand
from ...cache.simulation import Setting, build
from ...cache.tiered import SharedTiers, tiered
from ...cache.tiers import DEFAULTS, OPTIONAL, Tier
from ...trace.trace import Trace
from .base import BatchLimits, Scheduler

FIRST_TIER = "hbm"


def is_pooled(tiers: Sequence[Tier]) -> bool:
    """Whether a tier is more than one of an instance alone whose blocks move.

    >>> is_pooled([Tier("dram", 9)]), is_pooled([Tier("dram", 9, copies="write-back")])
    (False, True)
    """
    return any(getattr(tier, name) != DEFAULTS[name] for tier in tiers for name in OPTIONAL if name != "policy")


@dataclass(frozen=True)
class ReserveScheduler(Scheduler):
    """Admission in order of arrival, with all blocks reserved.

    >>> ReserveScheduler(BatchLimits(requests=4)).limits.step_tokens
    8192
    """

    name: ClassVar[str] = "reserve"
    version: ClassVar[str] = ""
    most_lower_tiers: ClassVar[int | None] = None
    tier_fields: ClassVar[frozenset[str]] = frozenset(OPTIONAL)
    batch: BatchLimits = field(default_factory=BatchLimits)

    @property
    def limits(self) -> BatchLimits:
        """Its tokens per step and requests at once."""
        return self.batch

    def limited(self, limits: BatchLimits) -> Self:
        """The scheduler with other limits."""
        return replace(self, batch=limits)

    def setting_of(self, setting: Setting) -> Setting:
        """The setting unchanged."""
        return setting

    def engine(self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """The cache of a setting, with tiers below it."""
        if not tiers:
            return build(setting, demand, must_hold=False)
        engine = tiered(setting, demand, tiers)
        engine.set_fetch_seconds([tier.fetch_seconds for tier in tiers])
        return engine

    def engines(
        self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int
    ) -> list[Any]:
        """The caches of several instances, with places below them if a tier is more than an exclusive one of each."""
        if not is_pooled(tiers):
            return super().engines(setting, demand, tiers, instances, per_host)
        from ..core.interleaved import PooledFirstTier

        for tier in tiers:
            if tier.capacity < 1:
                raise UsageError(f"Tier {tier.name} must have at least 1 block.")
        if setting.engine != "reference":
            raise UsageError(f"Tiers that instances share are not modelled in time with engine {setting.engine}.")
        every = (Tier(FIRST_TIER, setting.capacity), *tiers)
        shared = SharedTiers(setting, demand, every, instances, per_host, in_time=PooledFirstTier)
        link = np.zeros(int(shared.own.max()) + 1)  # place -> when its link is free
        sizes = {"rank": 1, "host": per_host, "cluster": instances}
        for number, engine in enumerate(shared.engines):
            engine.share(
                shared.places, number, [tier.fetch_seconds for tier in tiers], [tier.latency_s for tier in tiers],
                [sizes[tier.scope] > 1 or tier.peers for tier in tiers], link,
            )  # fmt: skip
        return shared.engines

    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool) -> Any:
        """An instance that reserves blocks."""
        from ..core.instance import ReservingInstance
        from ..core.interleaved import PooledFirstTier, PooledInstance

        context = engine.context
        limits = asdict(self.batch) | {"blocks": context.capacity, "block_size": context.trace.block_size}
        kind = PooledInstance if isinstance(engine, PooledFirstTier) else ReservingInstance
        return kind(engine, requests, cost, limits, prefetch)


@dataclass(frozen=True)
class RecordedScheduler(Scheduler):
    """Each request ends `service_ms` after its arrival. Requests do not wait for each other, and no block is evicted.

    A request whose service time was not recorded takes `unknown_ms`. The delays of a recording count from the start of
    such a request, so 0 gives the recorded arrivals.

    >>> RecordedScheduler().name
    'recorded'
    """

    name: ClassVar[str] = "recorded"
    version: ClassVar[str] = ""
    has_front: ClassVar[bool] = False  # it is part of the recorded times
    unknown_ms: float = 0.0

    @property
    def limits(self) -> BatchLimits:
        """Those of other schedulers; this one has none."""
        return BatchLimits()

    def limited(self, limits: BatchLimits) -> Self:
        """The scheduler itself."""
        return self

    def setting_of(self, setting: Setting) -> Setting:
        """The setting with the engine reference, and without a drafter: nothing is evicted, and times are known."""
        return replace(setting, engine="reference", policy="lru", engine_options=(), layout=None, drafting=None)

    def needs(self, demand: BlockDemand, setting: Setting) -> np.ndarray:
        """No blocks: no request is rejected."""
        return np.zeros(len(demand), dtype=np.int64)

    def engine(self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """A cache that holds all blocks. UsageError for lower tiers, and for a trace without service times."""
        if tiers:
            raise UsageError("Recorded service times have no lower tiers. Leave out the tiers.")
        self._service_s(demand.trace)
        return build(replace(setting, capacity=max(1, demand.blocks + len(demand))), demand, must_hold=False)

    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool) -> Any:
        """An instance that takes as long as was recorded."""
        from ..core.instance import RecordedInstance

        return RecordedInstance(engine, requests, cost, self._service_s(engine.context.trace))

    def _service_s(self, trace: Trace) -> np.ndarray:
        """The service time of each request in seconds. UsageError if the trace has none."""
        if trace.service_ms is None or np.isnan(trace.service_ms).all():
            raise UsageError("The trace has no recorded service times. Simulate an engine instead.")
        return np.nan_to_num(trace.service_ms, nan=self.unknown_ms) / 1000
