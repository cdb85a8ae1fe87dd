"""A trace served in time: instances that batch continuously, each with a queue and a prefix cache, behind a router.

Hits shorten prefills, prefills decide when requests end, and that decides what hits: the loop is closed event by event,
so that the curve of one pass is the quick look and this the truth. docs/serving/serving.md states the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .._base.errors import UsageError
from ..cache.demand import Jobs, jobs
from ..cache.simulation import Setting, build
from ..cache.tiered import tiered
from ..trace.trace import Trace
from .core import router as routers
from .instances import FleetSimulation, routed

CHUNK = 1 << 12  # requests between two looks at the progress
QUANTILES = (0.5, 0.9, 0.99)


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

    def to_dict(self) -> dict[str, Any]:
        """Keys as docs/serving/serving.md lists them: those of a simulation of instances, and times."""
        span = self.makespan_s
        served = len(self.ended_s) - self.rejected
        times = {name: _summary(getattr(self, f"{name}_s")) for name in ("queued", "ttft", "tpot")}
        return super().to_dict() | {
            "schedule": "events", "served": served, "rejected": self.rejected,
            "cached_tokens": int(self.cached_tokens.sum()), "makespan_s": span,
            "requests_per_s": served / span if span else 0.0,
            "utilisation": [busy / span if span else 0.0 for busy in self.busy_s],
        } | {f"{name}_s": values for name, values in times.items()}  # fmt: skip


def simulate_serving(
    trace: Trace,
    rates: StepCost,
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
    """The trace served by so many instances with the cache of `setting`; its schedule is what the events say.

    A request is admitted, in order of arrival, once all blocks that it may come to hold (its prompt's and, in mode
    grow, its output's) fit beside those of the live ones. One that no instance holds alone is rejected. What the first
    tier evicts goes to the `tiers` below it, and comes back if that is sooner than to compute it again; with `prefetch`
    it comes while the request waits.

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
        asked.most, batch_limits, asdict(rates), prefetch,
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


def _summary(values) -> dict[str, float]:
    """Mean and quantiles; zeros where there is nothing."""
    if not len(values):
        return {"mean": 0.0} | {f"p{round(100 * q)}": 0.0 for q in QUANTILES}
    return {"mean": float(values.mean())} | {f"p{round(100 * q)}": float(np.quantile(values, q)) for q in QUANTILES}
