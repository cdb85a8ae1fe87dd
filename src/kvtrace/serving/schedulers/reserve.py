"""A scheduler that never preempts: it admits a request if all blocks that the request may need are free.

No engine does this; engines admit more requests, and preempt some of them. It works with every cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

from ...cache.demand import BlockDemand
from ...cache.simulation import Setting, build
from ...cache.tiered import tiered
from .base import BatchLimits, Scheduler, Tier


@dataclass(frozen=True)
class ReserveScheduler(Scheduler):
    """Admission in order of arrival, with all blocks reserved.

    >>> ReserveScheduler(BatchLimits(requests=4)).limits.step_tokens
    8192
    """

    name: ClassVar[str] = "reserve"
    version: ClassVar[str] = ""
    most_lower_tiers: ClassVar[int | None] = None
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
        engine = tiered(setting, demand, [setting.capacity, *(tier.capacity for tier in tiers)])
        engine.set_fetch_seconds([tier.fetch_seconds for tier in tiers])
        return engine

    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool) -> Any:
        """An instance that reserves blocks."""
        from ..core.instance import ReservingInstance

        context = engine.context
        limits = asdict(self.batch) | {"blocks": context.capacity, "block_size": context.trace.block_size}
        return ReservingInstance(engine, requests, cost, limits, prefetch)
