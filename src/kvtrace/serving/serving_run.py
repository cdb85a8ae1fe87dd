"""The result of serving a trace in simulated time: the times of each request, and their quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from ..cache.tiered import TierDict
from .deployment import FleetDict, FleetSimulation, Timeline
from .schedulers.base import Scheduler, Tier

FIRST_TIER = "hbm"


class Quantiles(TypedDict):
    """The mean and three quantiles of a time in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class TimedTiersDict(TypedDict, total=False):
    """The tiers of each instance, the first one first; absent without lower tiers."""

    tiers: list[TierDict]


class ServingDict(FleetDict, TimedTiersDict):
    """The result of `ServingRun.to_dict`; docs/serving/serving.md explains the keys."""

    served: int
    rejected: int
    cached_tokens: int
    makespan_s: float
    requests_per_s: float
    utilisation: list[float]
    scheduler: str
    preemptions: int
    recomputed_tokens: int
    steps: int
    queued_s: Quantiles
    ttft_s: Quantiles
    tpot_s: Quantiles
    e2e_s: Quantiles


@dataclass(frozen=True, eq=False, repr=False)
class ServingRun(FleetSimulation):
    """The result of each request: its times in seconds, NaN if it was rejected."""

    started_s: np.ndarray = None  # type: ignore[assignment]  # when the request was admitted
    first_s: np.ndarray = None  # type: ignore[assignment]  # when its first token was computed
    ended_s: np.ndarray = None  # type: ignore[assignment]
    cached_tokens: np.ndarray = None  # type: ignore[assignment]  # prompt tokens that were not computed
    busy_s: tuple[float, ...] = ()  # compute time of each instance
    lower_tier_hits: np.ndarray | None = None  # (tier below the first, request) -> hit blocks that came from the tier
    scheduler: Scheduler | None = None
    steps: tuple[int, ...] = ()  # that each instance took
    preemptions: np.ndarray = None  # type: ignore[assignment]  # request -> times that it was preempted
    recomputed_tokens: np.ndarray = None  # type: ignore[assignment]  # request -> tokens computed again after that
    timelines: tuple[Timeline, ...] = ()  # of each instance, if they were kept
    tiers: tuple[Tier, ...] = ()  # below the first one of each instance

    def _headline(self) -> str:
        ttft = quantiles_of(self.ttft_s)
        return f"{super()._headline()}, ttft_p50_s={ttft['p50']:.4g}, ttft_p99_s={ttft['p99']:.4g}"

    def _columns(self) -> dict[str, np.ndarray]:
        names = ("started_s", "first_s", "ended_s", "cached_tokens", "preemptions", "recomputed_tokens")
        times = {name: getattr(self, name) for name in names}
        return super()._columns() | times | {"ttft_s": self.first_s - self.trace.timestamp / 1000}

    @property
    def rejected(self) -> int:
        """Requests that do not fit into an instance."""
        return int(np.isnan(self.ended_s).sum())

    @property
    def queued_s(self) -> np.ndarray:
        """Time from arrival to admission, of the requests that were served."""
        return served_only(self.started_s - self.trace.timestamp / 1000)

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to first token, from arrival, of the requests that were served."""
        return served_only(self.first_s - self.trace.timestamp / 1000)

    @property
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first, of the served requests with two output tokens or more."""
        several = self.trace.output_length > 1
        return served_only((self.ended_s - self.first_s)[several] / (self.trace.output_length[several] - 1))

    @property
    def e2e_s(self) -> np.ndarray:
        """Time from arrival to the last token, of the requests that were served."""
        return served_only(self.ended_s - self.trace.timestamp / 1000)

    @property
    def makespan_s(self) -> float:
        """Time from the start of the trace to the last end."""
        return float(np.nanmax(self.ended_s)) if self.rejected < len(self.ended_s) else 0.0

    def to_dict(self) -> ServingDict:
        """Keys as docs/serving/serving.md lists them: those of a simulation of instances, and times."""
        span = self.makespan_s
        served = len(self.ended_s) - self.rejected
        return {
            **super().to_dict(), "schedule": "events", "served": served, "rejected": self.rejected,
            "cached_tokens": int(self.cached_tokens.sum()), "makespan_s": span,
            "requests_per_s": served / span if span else 0.0,
            "utilisation": [busy / span if span else 0.0 for busy in self.busy_s],
            "scheduler": f"{self.scheduler.name} {self.scheduler.version}".strip() if self.scheduler else "",
            "preemptions": int(self.preemptions.sum()), "recomputed_tokens": int(self.recomputed_tokens.sum()),
            "steps": sum(self.steps), "queued_s": quantiles_of(self.queued_s), "ttft_s": quantiles_of(self.ttft_s),
            "tpot_s": quantiles_of(self.tpot_s), "e2e_s": quantiles_of(self.e2e_s), **self._tiers(),
        }  # fmt: skip

    def _tiers(self) -> TimedTiersDict:
        """The hit blocks of each tier, the first one first; nothing without lower tiers."""
        if self.lower_tier_hits is None:
            return {}
        lower = self.lower_tier_hits[:, self.warm_up :].sum(axis=1).tolist()
        first = int(self.hit_blocks[self.warm_up :].sum()) - sum(lower)
        rows: list[TierDict] = [{"name": FIRST_TIER, "capacity": self.setting.capacity, "hit_blocks": first}]
        for tier, hits in zip(self.tiers, lower, strict=True):
            rows.append({"name": tier.name, "capacity": tier.capacity, "hit_blocks": hits})
        return {"tiers": rows}


def served_only(values) -> np.ndarray:
    return values[~np.isnan(values)]


def quantiles_of(values: np.ndarray) -> Quantiles:
    """Mean and quantiles; zeros if there are no values."""
    if not len(values):
        return {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
    p50, p90, p99 = (float(np.quantile(values, quantile)) for quantile in (0.5, 0.9, 0.99))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}
