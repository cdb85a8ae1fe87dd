"""The result of serving a trace with prefill and decode on different workers, and the workers that give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .._base.results import column
from ..cache.simulation import Setting, advance_all
from ..trace.trace import Trace
from .disaggregation import Disaggregation
from .instances import CHUNK, Timeline
from .lanes import ClosedLoop, ClosedRun, PlayedTrace, lanes_of, play_laps
from .overload import Overload
from .routers import RouterName
from .schedulers.base import Scheduler
from .serving_run import ServingRun, quantiles_of, served_only

HANDOFF = "time from the end of a prefill until the decode worker can use its KV cache, the median"
E2E = {("p50",): "E2E p50"}
E2E_MEANING = "time from arrival to the last token, the median over the requests"
DECODE_HITS = "prompt blocks that the decode worker held already"


@dataclass(frozen=True, eq=False, repr=False)
class DisaggregatedRun(ServingRun):
    """The result of prefill and decode workers. `instance`, the hits and `started_s` are those of prefill workers."""

    disaggregation: Disaggregation = field(default_factory=Disaggregation)
    decode_instance: np.ndarray = None  # type: ignore[assignment]  # request -> its decode worker, -1 if rejected
    prefilled_s: np.ndarray = None  # type: ignore[assignment]  # when its prompt was computed
    transfer_begin_s: np.ndarray = None  # type: ignore[assignment]
    transfer_end_s: np.ndarray = None  # type: ignore[assignment]
    ready_s: np.ndarray = None  # type: ignore[assignment]  # when the decode worker took note of it, between steps
    released_s: np.ndarray = None  # type: ignore[assignment]  # when the prefill worker gave up its blocks
    decode_started_s: np.ndarray = None  # type: ignore[assignment]  # when its first step on the decode worker began
    decode_hit_blocks: np.ndarray = None  # type: ignore[assignment]  # prompt blocks that the decode worker held
    link_bytes: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # that each prefill worker sent, decode one got

    def _headline(self) -> str:
        kinds = f"{self.prefill_workers} prefill and {self.decode_workers} decode workers"
        return f"{super()._headline()}, {kinds}"

    def _columns(self) -> dict[str, np.ndarray]:
        names = (
            "decode_instance", "prefilled_s", "transfer_begin_s", "transfer_end_s", "ready_s", "released_s",
            "decode_started_s", "decode_hit_blocks",
        )  # fmt: skip
        return super()._columns() | {name: getattr(self, name) for name in names}

    @property
    @column("prefill", ",", rank=1, place=7)
    def prefill_workers(self) -> int:
        """Workers that compute prompts."""
        return self.disaggregation.prefill_workers or 0

    @property
    @column("decode", ",", rank=1, place=8)
    def decode_workers(self) -> int:
        """Workers that compute outputs."""
        return self.disaggregation.decode_workers or 0

    @property
    @column()
    def decode_router(self) -> RouterName:
        """The router of the decode workers."""
        return self.disaggregation.decode_router or self.router

    @property
    @column()
    def decode_capacity(self) -> int:
        """Blocks in the cache of a decode worker."""
        return self.disaggregation.decode_capacity or self.setting.capacity

    @property
    @column("decode hits", ",", rank=2, place=13, key="decode_hit_blocks", meaning=DECODE_HITS)
    def _decode_hit_blocks(self) -> int:
        return int(self.decode_hit_blocks[self.counted].sum())

    @property
    @column(value=quantiles_of)
    def prefill_s(self) -> np.ndarray:
        """Time from admission on a prefill worker to the end of the prefill, of the requests that were served."""
        return served_only((self.prefilled_s - self.started_s)[self.counted])

    @property
    @column(value=quantiles_of)
    def transfer_s(self) -> np.ndarray:
        """Time that a KV transfer takes, of the requests that were served."""
        return served_only((self.transfer_end_s - self.transfer_begin_s)[self.counted])

    @property
    @column(
        "handoff p50", ".1f", unit=" ms", scale=1000, rank=2, place=22, value=quantiles_of,
        parts={("p50",): "handoff p50"}, meaning=HANDOFF,
    )  # fmt: skip
    def handoff_s(self) -> np.ndarray:
        """Time from the end of a prefill until the decode worker can use its KV cache: the wait for blocks there, the
        transfer, and the end of the step under way.
        """
        return served_only((self.ready_s - self.prefilled_s)[self.counted])

    @property
    @column()
    def transfer_tokens(self) -> int:
        """Prompt tokens whose KV cache was sent: those that the decode worker did not hold, with Dynamo in whole blocks,
        or whole prompts in its mode full_prompt.
        """
        sent, tokens, size = ~np.isnan(self.transfer_begin_s), self.trace.input_length, self.trace.block_size
        if self.setting.engine != "dynamo":
            return int(np.maximum(tokens - size * self.decode_hit_blocks, 0)[sent].sum())
        if self.disaggregation.kv_transfer_timing_mode != "destination_missing":
            return int(np.maximum(tokens, 1)[sent].sum())
        return int(size * (-(-np.maximum(tokens, 1) // size) - self.decode_hit_blocks)[sent].sum())

    @property
    @column("E2E p50", ".2f", unit=" s", place=22, rank=2, value=quantiles_of, parts=E2E, meaning=E2E_MEANING)
    def e2e_s(self) -> np.ndarray:
        """Time from arrival to the last token, of the requests that were served."""
        return super().e2e_s

    @property
    def instance_names(self) -> list[str]:
        """The workers in words, the prefill workers first."""
        kinds = (("prefill", self.prefill_workers), ("decode", self.decode_workers))
        return [f"{kind} {number}" for kind, count in kinds for number in range(count)]

    @property
    def overload(self) -> Overload | None:
        """None: the two kinds of workers are not told apart."""
        return None


@dataclass(frozen=True, eq=False, repr=False)
class ClosedDisaggregatedRun(DisaggregatedRun, ClosedRun):
    """The result of prefill and decode workers in a closed loop: requests in order of arrival, and the plays."""


class WorkersOfKinds(Protocol):
    """Compiled workers of both kinds, and the loop that runs them."""

    @property
    def serving(self) -> Any:
        """The compiled loop."""

    @property
    def arrivals(self) -> Any:
        """The compiled requests whose arrivals the loop takes."""

    @property
    def front(self) -> tuple[np.ndarray, float]:
        """The times of the API server, as SessionLanes takes them."""

    @property
    def instances(self) -> list[Any]:
        """The compiled workers, those for prefills first."""

    def results(self) -> dict[str, Any]:
        """The fields of a DisaggregatedRun except its trace, when all requests have ended."""


def serve_workers(
    trace: Trace,
    build: Callable[[Trace], WorkersOfKinds],
    loop: ClosedLoop | None = None,
    *,
    unit_ms: float = 1000,
    timelines: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> DisaggregatedRun:
    """Serve a trace on workers of two kinds, in the open loop or a closed one.

    Args:
        trace: The trace.
        build: Makes the compiled workers for a trace.
        loop: The closed loop.
        unit_ms: The unit of the times of the compiled loop.
        timelines: Keep the time line of each worker.
        on_progress: Receives the number of requests served since its last call.
    """

    def built_for(played: Trace) -> WorkersOfKinds:
        built = build(played)
        for worker in built.instances if timelines else ():
            worker.watch()
        return built

    if loop is None:
        built = built_for(trace)
        advance_all(built.serving, len(trace), on_progress, CHUNK)
        built.serving.close()
        return DisaggregatedRun(**built.results(), trace=trace)

    def play(played: PlayedTrace) -> tuple[Callable[[np.ndarray], dict[str, Any]], dict[str, Any]]:
        built = built_for(played.trace)
        lanes = lanes_of(played, loop, built.arrivals, built.front, several=False)
        for instance in built.instances:
            instance.engine.context.set_due(lanes.due)
        built.serving.play(lanes)
        built.serving.advance(len(played.trace))
        built.serving.close()
        if on_progress:
            on_progress(lanes.outcome["rows"].size)
        return lambda rows: _taken(built.results(), rows), lanes.outcome

    run = play_laps(trace, loop, play, unit_ms=unit_ms, kind=ClosedDisaggregatedRun)
    assert isinstance(run, ClosedDisaggregatedRun)
    return run


def _taken(fields: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """The fields, of some rows in their order."""
    return {name: value[rows] if isinstance(value, np.ndarray) else value for name, value in fields.items()}


@dataclass(frozen=True)
class BuiltWorkers:
    """Compiled workers of both kinds of Dynamo's replay, and the loop that runs them; its times are in ms."""

    serving: Any
    setting: Setting
    scheduler: Scheduler
    router: RouterName
    disaggregation: Disaggregation
    prefilled: Any  # the requests on the prefill workers
    decoded: Any  # and on the decode workers
    prefills: list[Any]
    decodes: list[Any]
    tokens: np.ndarray  # of each prompt
    block_size: int

    @property
    def arrivals(self) -> Any:
        """The requests whose arrivals the loop takes."""
        return self.prefilled

    @property
    def front(self) -> tuple[np.ndarray, float]:
        """No API server stands before Dynamo's mocked engines."""
        return np.zeros(len(self.tokens)), 0.0

    @property
    def instances(self) -> list[Any]:
        """The compiled workers, those for prefills first."""
        return [*self.prefills, *self.decodes]

    def results(self) -> dict[str, Any]:
        """The fields of a DisaggregatedRun except its trace, when all requests have ended."""
        instances = self.instances
        engines = [instance.engine for instance in instances]
        first, second, moved, unit = self.prefilled.outcomes, self.decoded.outcomes, self.serving.outcomes, 0.001
        hit_blocks = sum(engine.hits.astype(np.int64) for engine in engines[: len(self.prefills)])
        needed = -(-self.tokens // self.block_size)
        rejected, sent = moved["rejected"].astype(bool), np.isfinite(moved["transferring"])
        instance = np.where(np.isnan(first["started"]), -1, first["instance"])  # of those that never began
        lines = [
            Timeline.of([(at * unit, *counts) for at, *counts in instance.timeline]) for instance in instances
            if instance.timeline
        ]  # fmt: skip
        return {
            "setting": self.setting, "hit_blocks": hit_blocks, "early_frees": 0,
            "evictions": sum(engine.evictions for engine in engines), "router": self.router, "instance": instance,
            "instances": len(self.prefills), "started_s": first["started"] * unit, "first_s": second["first"] * unit,
            "ended_s": np.where(rejected, np.nan, second["ended"]) * unit, "cached_tokens": first["cached"],
            "busy_s": tuple(instance.busy * unit for instance in instances), "scheduler": self.scheduler,
            "steps": tuple(instance.steps for instance in instances),
            "preemptions": first["preempted"] + second["preempted"],
            "recomputed_tokens": first["recomputed"] + second["recomputed"], "timelines": tuple(lines),
            "disaggregation": self.disaggregation, "decode_instance": np.where(sent, second["instance"], -1),
            "prefilled_s": np.where(instance < 0, np.nan, first["ended"]) * unit,
            "transfer_begin_s": moved["transferring"] * unit, "transfer_end_s": moved["transferred"] * unit,
            "ready_s": moved["activated"] * unit, "released_s": moved["released"] * unit,
            "decode_started_s": second["started"] * unit,
            "decode_hit_blocks": np.where(sent, needed - moved["sent"], 0),
        }  # fmt: skip
