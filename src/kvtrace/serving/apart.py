"""Serve a trace with prefill and decode on different workers, which have the schedulers of vLLM or of SGLang.

A request goes to a prefill worker and to a decode worker, and its KV cache from one to the other.
docs/serving/serving.md states the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._base.errors import UsageError
from ..cache.demand import BlockDemand, block_demand
from ..cache.simulation import Setting
from ..trace.columns import replace_columns
from ..trace.domains import in_domains
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, require_known
from .disaggregated import DisaggregatedRun, serve_workers
from .disaggregation import Disaggregation
from .instances import Cost, Timeline, entered_s, make_router
from .lanes import ClosedLoop
from .models.shape import ModelShape
from .routers import RouterName
from .schedulers.base import Scheduler
from .workers import Workers

EARLY = ("sglang",)  # engines whose decode worker reserves room before the prompt is computed, and that send chunks


@dataclass(frozen=True)
class Link:
    """The link of each worker, which its transfers share: one goes after another, at both ends.

    >>> Link(50e9).seconds_per_byte
    2e-11
    """

    bytes_per_s: float | None = None  # of a worker, over all of its network cards; None: no time
    latency_s: float = 0.0

    @property
    def seconds_per_byte(self) -> float:
        """The time that a byte takes."""
        return 1 / self.bytes_per_s if self.bytes_per_s else 0.0


def serve_apart(
    trace: Trace,
    prefill: Workers,
    decode: Workers,
    *,
    link: Link = Link(),
    shape: ModelShape | None = None,
    bytes_per_token: float = 0.0,
    max_local_prefill_length: int | None = None,
    api_servers: int | None = None,
    loop: ClosedLoop | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> DisaggregatedRun:
    """Serve a trace with prefill and decode on different workers.

    Args:
        trace: The trace.
        prefill, decode: The workers of each kind, of one engine.
        link: How long a transfer takes.
        shape: The model as a decode worker holds it, which says what a transfer carries; else `bytes_per_token` does.
        bytes_per_token: Bytes of a prompt token.
        max_local_prefill_length: With vLLM: the most prompt tokens without a hit there that a decode worker computes
            itself (Dynamo's name; llm-d's nonCachedTokens is one more). None: it computes none.
        api_servers: Servers that take the requests, one after another each; the default is one for each prefill rank.
        loop: Run the trace in this closed loop.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The times and the hits of each request; of a closed loop a ClosedDisaggregatedRun.

    Raises:
        UsageError: An argument is not valid, or is not modelled.

    >>> from kvtrace.serving.simulation import StepCost
    >>> from kvtrace.trace.building import toy
    >>> half = Workers(StepCost(token_s=0.001), Setting(100, engine="vllm"))
    >>> run = serve_apart(toy("0 1", block_size=16), half, half, link=Link(16e3), bytes_per_token=1e3)
    >>> run.prefilled_s.tolist(), run.transfer_end_s.round(3).tolist(), run.ttft_s.round(3).tolist()
    ([0.032], [2.032], [2.034])
    """
    trace = in_domains(trace)
    require_known(trace, trace.meta, "the outcome of a simulation in time", PREFIXES, OUTPUTS)
    kinds = Disaggregation(
        prefill.workers, decode.workers, decode.router, decode.setting.capacity,
        max_local_prefill_length=max_local_prefill_length,
    )  # fmt: skip

    def build(played: Trace) -> ApartWorkers:
        return _built(played, prefill, decode, link, shape, bytes_per_token, kinds, api_servers)

    return serve_workers(trace, build, loop, on_progress=on_progress)


def engine_workers(
    trace: Trace, cost: Cost, scheduler: Scheduler, setting: Setting, disaggregation: Disaggregation,
    router: RouterName, router_seed: int = 0, demand: BlockDemand | None = None,
) -> ApartWorkers:  # fmt: skip
    """The compiled workers of both kinds, as options describe them; UsageError for what is not modelled.

    Args:
        trace: The trace.
        cost, scheduler, setting: Of the workers of a kind that the disaggregation does not describe.
        disaggregation: The workers, and the transfer of the KV cache.
        router: Of the prefill workers.
        router_seed, demand: Are not used.
    """
    if disaggregation.kv_transfer_timing_mode == "full_prompt":
        raise UsageError(
            f"Engine {setting.engine} sends what the decode worker does not hold. Leave out --kv-transfer-timing-mode."
        )
    plain = Workers(cost, setting, scheduler)
    first, second = disaggregation.workers
    prefill = replace(disaggregation.prefill or plain, workers=first, router=router)
    decode = replace(disaggregation.decode or plain, workers=second, router=disaggregation.decode_router or router)
    if disaggregation.decode_capacity:
        decode = replace(decode, setting=replace(decode.setting, capacity=disaggregation.decode_capacity))
    link = Link(disaggregation.kv_transfer_bandwidth, disaggregation.kv_transfer_latency_s)
    each = disaggregation.kv_transfer_bytes_per_token
    if disaggregation.kv_transfer_bandwidth and not each and decode.shape is None:
        raise UsageError("--kv-transfer-bandwidth needs --kv-transfer-bytes-per-token, or a --model.")
    shape = None if each else decode.shape
    return _built(trace, prefill, decode, link, shape, each or 0.0, disaggregation, None)


def _built(
    trace: Trace, prefill: Workers, decode: Workers, link: Link, shape: ModelShape | None, bytes_per_token: float,
    kinds: Disaggregation, api_servers: int | None,
) -> ApartWorkers:  # fmt: skip
    """The compiled workers."""
    from .core.apart import ApartServing, Links
    from .core.instance import Requests

    engine = prefill.setting.engine
    if decode.setting.engine != engine:
        raise UsageError("Prefill and decode workers must have one engine.")
    if kinds.max_local_prefill_length is not None and engine in EARLY:
        raise UsageError("SGLang's decode workers compute no prompts. Leave out --max-local-prefill-length.")
    ones = np.ones(len(trace), dtype=np.int64)
    prompts = replace_columns(trace, output_length=ones, output_ids=None, output_offsets=None, extra={})
    sides = [
        _Side.of(prefill, Trace.from_columns(prompts, block_size=trace.block_size, tail=trace.tail)),
        _Side.of(decode, trace),
    ]
    front = prefill.cost.front(trace.input_length, api_servers or prefill.workers * prefill.ranks)
    tokens, outputs = decode.own_scheduler.lengths(trace)
    requests = Requests(entered_s(trace, front), tokens, outputs, np.zeros(len(trace), dtype=np.int64))
    if shape is None:
        sizes, each = bytes_per_token * tokens, bytes_per_token
    else:
        sizes, each = shape.fetched_bytes(tokens), float(shape.fetched_bytes(2) - shape.fetched_bytes(1))
    place = np.concatenate([np.arange(one.workers * one.ranks) % one.workers for one in (prefill, decode)])
    links = Links(place, prefill.workers, decode.workers, link.seconds_per_byte, link.latency_s)
    local = -1 if kinds.max_local_prefill_length is None else kinds.max_local_prefill_length
    serving = ApartServing(
        [side.instances for side in sides], [side.router for side in sides], requests,
        [side.requests for side in sides], [prefill.setting.capacity, decode.setting.capacity], links, (sizes, each),
        (engine in EARLY, engine in EARLY, local),
    )  # fmt: skip
    decode.own_scheduler.receive(sides[1].instances)
    return ApartWorkers(prefill, decode, kinds, sides, serving, links, requests, front)


@dataclass(frozen=True)
class _Side:
    """Compiled workers of one kind, with their router: worker by worker in turn, then rank by rank."""

    requests: Any
    engines: list[Any]
    instances: list[Any]
    router: Any

    @classmethod
    def of(cls, workers: Workers, trace: Trace) -> _Side:
        from .core.instance import Requests

        scheduler = workers.own_scheduler
        setting = replace(scheduler.setting_of(workers.setting), layout=None)
        demand = block_demand(trace, *setting.demand_options)
        tokens, outputs = scheduler.lengths(demand.trace)
        requests = Requests(np.zeros(len(trace)), tokens, outputs, scheduler.needs(demand, setting))
        terms = workers.cost.terms(setting.capacity * trace.block_size)
        if workers.lockstep and workers.ranks > 1 and setting.engine == "vllm":
            raise UsageError(
                "vLLM's ranks that share experts are not modelled as workers of one kind. Leave out "
                "--data-parallel-size, or use --engine sglang."
            )
        groups = []  # worker -> its ranks
        for _ in range(workers.workers):
            engines = [scheduler.engine(setting, demand, ()) for _ in range(workers.ranks)]
            if workers.lockstep and workers.ranks > 1:
                groups.append(scheduler.ranks(engines, requests, terms))
            else:
                groups.append([scheduler.worker(engine, requests, terms) for engine in engines])
        instances = [group[rank] for rank in range(workers.ranks) for group in groups]
        engines = [instance.engine for instance in instances]
        return cls(requests, engines, instances, make_router(trace, workers.router, engines))


@dataclass(frozen=True)
class ApartWorkers:
    """Compiled workers of both kinds, and after a run, what they found."""

    prefill: Workers
    decode: Workers
    disaggregation: Disaggregation
    sides: list[_Side]
    serving: Any
    links: Any
    arrivals: Any  # the requests whose arrivals the loop takes
    front: tuple[np.ndarray, float]  # the times of the API server

    @property
    def instances(self) -> list[Any]:
        """The compiled ranks of prefill workers, then those of decode workers."""
        return [*self.sides[0].instances, *self.sides[1].instances]

    def _check(self) -> None:
        """UsageError if a request never got room on a worker."""
        outcomes = self.sides[1].requests.outcomes
        sent = (np.asarray(self.serving.receiver) >= 0) | (np.asarray(self.serving.sender) >= 0)
        waits = sent & np.isnan(outcomes["ended"])
        if waits.any():
            raise UsageError(
                f"{int(waits.sum()):,} requests never get room for their KV cache. Try a larger --capacity, or more "
                "decode workers."
            )

    def _hits(self, side: int) -> np.ndarray:
        return sum(engine.hits.astype(np.int64) for engine in self.sides[side].engines)

    def results(self) -> dict[str, Any]:
        """The fields of a DisaggregatedRun except its trace, when all requests have ended.

        Those of a prompt are its prefill worker's, or its decode worker's if that computed it.
        """
        self._check()
        first, second = (side.requests.outcomes for side in self.sides)
        run, count, instances = self.serving, len(self.sides[0].instances), self.instances
        local, receiver, arrived = np.asarray(run.local) == 1, np.asarray(run.receiver), np.asarray(run.arrived)
        held = self._hits(1)
        lines = [Timeline.of(one.timeline) for one in instances if one.timeline]
        return {
            "setting": self.prefill.setting, "hit_blocks": np.where(local, held, self._hits(0)),
            "evictions": sum(engine.evictions for side in self.sides for engine in side.engines), "early_frees": 0,
            "router": self.prefill.router, "instance": np.asarray(run.sender).astype(np.int32), "instances": count,
            "started_s": np.where(local, second["started"], first["started"]), "first_s": second["first"],
            "ended_s": second["ended"], "cached_tokens": np.where(local, second["cached"], first["cached"]),
            "busy_s": tuple(instance.busy for instance in instances), "scheduler": self.prefill.own_scheduler,
            "steps": tuple(instance.steps for instance in instances),
            "preemptions": first["preempted"] + second["preempted"],
            "recomputed_tokens": first["recomputed"] + second["recomputed"], "timelines": tuple(lines),
            "disaggregation": self.disaggregation,
            "decode_instance": np.where(receiver >= 0, receiver - count, -1).astype(np.int32),
            "prefilled_s": np.asarray(run.computed), "transfer_begin_s": np.asarray(run.begun),
            "transfer_end_s": arrived, "ready_s": arrived, "released_s": arrived,
            "decode_started_s": second["started"], "decode_hit_blocks": held,
            "link_bytes": (tuple(np.asarray(self.links.sent).tolist()), tuple(np.asarray(self.links.received).tolist())),
        }  # fmt: skip
