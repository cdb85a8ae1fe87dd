"""Prefill and decode workers as in Dynamo's offline replay (ai-dynamo-runtime 1.6.1), with its step times and routers.

Checked against the replay: workers, hits and times of each request (tests/clients/test_dynamo_disaggregated.py,
tests/vectors). docs/serving/dynamo.md has the rules and the figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .._base.errors import UsageError
from ..cache.demand import BlockDemand, block_demand
from ..cache.simulation import Setting
from ..trace.trace import Trace
from .disaggregated import BuiltWorkers
from .disaggregation import Disaggregation
from .instances import Cost, make_router
from .routers import OWN, RouterName
from .schedulers.base import Scheduler
from .schedulers.dynamo import DynamoCost, DynamoScheduler


def dynamo_workers(
    trace: Trace,
    cost: Cost,
    scheduler: Scheduler,
    setting: Setting,
    disaggregation: Disaggregation,
    router: RouterName,
    router_seed: int = 0,
    demand: BlockDemand | None = None,
    winners: tuple[np.ndarray, np.ndarray] | None = None,
    decode_scheduler: DynamoScheduler | None = None,
) -> BuiltWorkers:
    """The compiled workers of both kinds; their clocks are in milliseconds.

    Args:
        trace: The trace.
        cost: A DynamoCost.
        scheduler: A DynamoScheduler, for both kinds of workers if there is no `decode_scheduler`.
        setting: The cache of a prefill worker.
        disaggregation: The workers, and the transfer of the KV cache.
        router, router_seed: Of the prefill workers; the seed is that of both routers.
        demand: The block demand of the trace, if it is already known.
        winners: Request -> the prefill worker, and the decode worker, that win ties of the router dynamo; -1 = drawn.
        decode_scheduler: Of the decode workers, with other limits.

    Raises:
        UsageError: The cost is another one, or the options do not fit together.
    """
    from .core.dynamo_workers import DynamoDecode, DynamoPrefill, DynamoServing
    from .core.instance import Requests

    if not isinstance(cost, DynamoCost) or not isinstance(scheduler, DynamoScheduler):
        raise UsageError("Dynamo's prefill and decode workers have step times of their own. Leave out --gpu, --costs.")
    if disaggregation.seconds_per_token and disaggregation.kv_transfer_latency_s:
        raise UsageError("Dynamo's replay has a latency or a bandwidth of KV transfers, not both. Leave out one.")
    if disaggregation.max_local_prefill_length is not None:
        raise UsageError("Dynamo's replay sends each prompt to a prefill worker. Leave out --max-local-prefill-length.")
    if disaggregation.prefill or disaggregation.decode:
        raise UsageError("Dynamo's mocked workers have no deployments of their own. Leave out prefill and decode.")
    decoding = decode_scheduler or scheduler
    if scheduler.aic_nextn or decoding.aic_nextn or setting.drafting:
        raise UsageError("Multi-token prediction is not simulated on prefill and decode workers. Leave out aic_nextn.")
    prefills, decodes = disaggregation.workers
    caches = (setting.capacity, disaggregation.decode_capacity or setting.capacity)
    demand = demand or block_demand(trace, *setting.demand_options)
    tokens, output = scheduler.lengths(demand.trace)
    blocks, most = (-(-count // trace.block_size) for count in (tokens, tokens + output - 1))
    needs = np.where((blocks <= caches[1]) & (most > caches[1]), caches[0] + 1, 0)  # an output that does not fit
    sides = []
    for role, count, capacity, kind, outputs, name, steps in (
        ("prefill", prefills, caches[0], DynamoPrefill, np.ones_like(output), router, scheduler),
        ("decode", decodes, caches[1], DynamoDecode, output, disaggregation.decode_router or router, decoding),
    ):
        requests = Requests(trace.timestamp, tokens, outputs, needs)
        engines = [steps.engine(replace(setting, capacity=capacity), demand, ()) for _ in range(count)]
        terms = cost.terms_ms(capacity * trace.block_size)
        workers = [kind(engine, requests, terms, steps.as_vllm.kernel_limits(engine)) for engine in engines]
        winner = None if winners is None else winners[role == "decode"]
        sides.append((requests, workers, _router(name, trace, engines, requests, demand, router_seed, winner, role)))
    (prefilled, first, chooser), (decoded, second, decode_chooser) = sides
    link = {
        "bytes_per_token": disaggregation.kv_transfer_bytes_per_token or 0,
        "bandwidth": disaggregation.kv_transfer_bandwidth or 0.0,
        "latency": 1000 * disaggregation.kv_transfer_latency_s,
        "missing_only": disaggregation.kv_transfer_timing_mode == "destination_missing",
    }  # fmt: skip
    serving = DynamoServing(first, second, chooser, decode_chooser, prefilled, decoded, caches[0], link)
    return BuiltWorkers(
        serving, setting, scheduler, router, disaggregation, prefilled, decoded, first, second, tokens,
        trace.block_size,
    )  # fmt: skip


def _router(
    name: str, trace: Trace, engines: list[Any], requests: Any, demand: BlockDemand, seed: int,
    winner: np.ndarray | None, role: str,
) -> Any:  # fmt: skip
    """The compiled router of the workers of a role."""
    from .core.serving import DynamoRouter

    if name in OWN:
        raise UsageError(f"--router {name} is an engine's own balancer of ranks. Try round-robin or dynamo.")
    if name == "dynamo":
        return DynamoRouter(engines, requests, demand.blocks, trace.block_size, seed, winner, role)
    return make_router(trace, name, engines)
