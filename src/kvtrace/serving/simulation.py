"""A trace served in time: instances that batch continuously, each with a queue and a prefix cache, behind a router.

Hits shorten prefills, prefills decide when requests end, and that decides what hits: the loop is closed event by event,
so that the curve of one pass is the quick look and this the truth. docs/serving/serving.md states the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

import numpy as np

from .._base.errors import UsageError
from ..cache.demand import Jobs, jobs
from ..cache.simulation import Setting, build
from ..cache.tiered import tiered
from ..trace.trace import Trace
from .core import router as routers
from .instances import FleetDict, FleetSimulation, routed

CHUNK = 1 << 12  # requests between two looks at the progress


@dataclass(frozen=True)
class StepCost:
    """What a step of an instance takes: the larger of what it computes and what it reads, and `overhead_s` on top.

    It computes `token_s` for each token and `pair_s` for each pair of tokens that attend to each other, counted as
    n^2 - p^2 for a prompt that grows from p to n tokens; it reads for `step_s`, and `read_s` for each cached token.
    """

    token_s: float
    pair_s: float = 0.0
    step_s: float = 0.0
    read_s: float = 0.0
    overhead_s: float = 0.0


@dataclass(frozen=True)
class BatchLimits:
    """How an instance batches: tokens a step, and requests at once."""

    step_tokens: int = 8192
    requests: int = 256


@dataclass(frozen=True)
class Tier:
    """A tier below the first: its capacity in blocks, and what its blocks take to come up."""

    name: str
    capacity: int
    block_s: float  # seconds a block: bytes of a block / bandwidth


class Quantiles(TypedDict):
    """The mean and three quantiles of a time in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class ServingDict(FleetDict):
    """What `ServingRun.to_dict` returns; docs/serving/serving.md explains the keys."""

    served: int
    rejected: int
    cached_tokens: int
    makespan_s: float
    requests_per_s: float
    utilisation: list[float]
    queued_s: Quantiles
    ttft_s: Quantiles
    tpot_s: Quantiles


@dataclass(frozen=True, eq=False)
class ServingRun(FleetSimulation):
    """What became of each request: its times in seconds, NaN where it was rejected."""

    started_s: np.ndarray = None  # type: ignore[assignment]  # when its prefill was admitted
    first_s: np.ndarray = None  # type: ignore[assignment]  # ... its first token was there
    ended_s: np.ndarray = None  # type: ignore[assignment]
    cached_tokens: np.ndarray = None  # type: ignore[assignment]  # of its prompt, that were not computed
    busy_s: tuple[float, ...] = ()  # what each instance computed
    found: np.ndarray | None = None  # (tier below the first, request) -> hit blocks that came from there

    @property
    def rejected(self) -> int:
        """Requests that no instance holds."""
        return int(np.isnan(self.ended_s).sum())

    @property
    def queued_s(self) -> np.ndarray:
        """From arrival to admission, of those that were served."""
        return _known(self.started_s - self.trace.timestamp / 1000)

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to first token: from arrival, of those that were served."""
        return _known(self.first_s - self.trace.timestamp / 1000)

    @property
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first, of those that were served and have two or more."""
        several = self.trace.output_length > 1
        return _known((self.ended_s - self.first_s)[several] / (self.trace.output_length[several] - 1))

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
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
            "queued_s": _quantiles(self.queued_s), "ttft_s": _quantiles(self.ttft_s), "tpot_s": _quantiles(self.tpot_s),
        }  # fmt: skip


def simulate_serving(
    trace: Trace,
    cost: StepCost,
    *,
    setting: Setting,
    instances: int = 1,
    router: str = "round-robin",
    limits: BatchLimits | None = None,
    tiers: Sequence[Tier] = (),
    prefetch: bool = True,
    asked: Jobs | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ServingRun:
    """Serve a trace in simulated time: instances that batch continuously, behind a router, each with a prefix cache.

    A request is admitted, in order of arrival, once all blocks that it may come to hold (its prompt's and, in mode
    grow, its output's) fit beside those of the live ones. One that no instance holds alone is rejected. What the first
    tier evicts goes to the `tiers` below it, and comes back if that is sooner than to compute it again; with `prefetch`
    it comes while the request waits.

    Args:
        trace: The trace, with its arrivals.
        cost: The time that a step of an instance takes.
        setting: The cache of each instance; its schedule is not used.
        instances: The number of instances.
        router: A router of docs/serving/instances.md.
        limits: Tokens a step and requests at once; the default is `BatchLimits()`.
        tiers: Tiers below the first one of each instance, the fastest first.
        prefetch: Blocks come up from lower tiers while their request waits.
        asked: What each request demands of the cache, where that is known already.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The times of each request in seconds, its hits, and the load of each instance.

    Raises:
        UsageError: An argument is not valid.

    >>> from kvtrace.trace.building import toy
    >>> done = simulate_serving(toy("0 1", "0 1", gap_ms=5000.0), StepCost(token_s=1.0), setting=Setting(4))
    >>> done.ttft_s.tolist(), done.cached_tokens.tolist()
    ([2.0, 1.0], [0, 1])
    """
    from .core.serving import Serving

    routers.check(router)
    limits = limits or BatchLimits()
    if instances < 1 or limits.step_tokens < 1 or limits.requests < 1:
        raise UsageError("instances, tokens a step and requests at once are 1 or more.")
    if setting.bound or setting.schedule.kind != "c1" or setting.capacity < 1:
        raise UsageError("who is live when follows from the events, and the order is one that an engine can have.")
    asked = asked or jobs(trace, *setting.asks)
    engines = [_engine(setting, asked, tiers) for _ in range(instances)]
    batch_limits = asdict(limits) | {"blocks": setting.capacity, "block_size": trace.block_size}
    run = Serving(
        engines, routed(trace, router, engines), trace.timestamp / 1000, trace.input_length, trace.output_length,
        asked.most, batch_limits, asdict(cost), prefetch,
    )  # fmt: skip
    done = 0
    while done < len(asked):
        before, done = done, run.advance(CHUNK)
        if on_progress:
            on_progress(done - before)
    run.close()
    found = run.found
    hit_blocks = sum(engine.hits.astype(np.int64) for engine in engines)
    return ServingRun(
        setting, trace, hit_blocks, sum(engine.evictions for engine in engines), 0, 0, router, found["instance"],
        instances, found["started"], found["first"], found["ended"], found["cached"], tuple(run.busy),
        sum(engine.found.astype(np.int64) for engine in engines) if tiers else None,
    )  # fmt: skip


def _engine(setting: Setting, asked: Jobs, tiers: Sequence[Tier]):
    """The cache of one instance."""
    if not tiers:
        return build(setting, asked, must_hold=False)
    engine = tiered(setting, asked, [setting.capacity, *(tier.capacity for tier in tiers)])
    engine.fetching([tier.block_s for tier in tiers])
    return engine


def _known(values) -> np.ndarray:
    return values[~np.isnan(values)]


def _quantiles(values: np.ndarray) -> Quantiles:
    """Mean and quantiles; zeros where there are no values."""
    if not len(values):
        return {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
    p50, p90, p99 = (float(np.quantile(values, quantile)) for quantile in (0.5, 0.9, 0.99))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}
