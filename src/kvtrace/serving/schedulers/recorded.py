"""The recorded service times in place of an engine: to check a recording, and what the closed loop makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from ..._base.errors import UsageError
from ...cache.demand import BlockDemand
from ...cache.simulation import Setting, build
from ...trace.trace import Trace
from .base import BatchLimits, Scheduler, Tier


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
    unknown_ms: float = 0.0

    @property
    def limits(self) -> BatchLimits:
        """Those of other schedulers; this one has none."""
        return BatchLimits()

    def limited(self, limits: BatchLimits) -> Self:
        """The scheduler itself."""
        return self

    def setting_of(self, setting: Setting) -> Setting:
        """The setting with the engine reference."""
        return replace(setting, engine="reference", policy="lru", engine_options=(), layout=None)

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
