"""Hints in the closed loop: GPU times, sessions on lanes, with and without a DRAM tier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from kvtrace.cache.simulation import Setting
from kvtrace.serving.calibration.costs import roofline_cost
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import Roofline, gpu
from kvtrace.serving.hardware.room import kv_room
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.models import model_shape
from kvtrace.serving.schedulers.base import Tier
from kvtrace.serving.simulation import closed_loop as serve_closed
from kvtrace.trace.trace import Trace

MODEL, GPU, GPUS = "qwen3-235b-a22b", "h200", 8
POLICIES = (
    "lru", "arc", "session-end", "superseded", "tool-ttl:P90", "retain:10m", "agent-hints:P90", "oracle-session",
)  # fmt: skip
LANES = (16, 24, 32)
DRAM_CONTEXTS = 64  # capacity of the DRAM tier, in median contexts
DRAM_BYTES_PER_S = 50e9
DURATION_S = 7200.0
AT_ARRIVAL, AT_ADMISSION, BEFORE = "at arrival", "at admission", "before arrival"  # when a fetch from DRAM begins


@dataclass(frozen=True)
class ClosedPoint:
    """The means over the seeds of one policy."""

    policy: str
    lanes: int
    dram: bool
    fetch: str
    token_hit_rate: float
    ttft_mean_s: float
    ttft_p90_s: float
    sessions: float  # that ended in the window
    requests_per_s: float
    gains: tuple[float, ...] = ()  # of each seed: requests_per_s beside that of LRU


def closed_loop(
    trace: Trace, context: int, seeds: Iterable[int], on_run: Callable[[str], None] = lambda name: None
) -> list[ClosedPoint]:
    """Serve the sessions with each policy; `context` is the median context in blocks."""
    seeds, points = list(seeds), []
    for lanes in LANES:
        for dram in (False, True):
            runs = [(policy, AT_ARRIVAL) for policy in POLICIES]
            if dram:
                runs += [("lru", AT_ADMISSION), ("lru", BEFORE)]
            usual: list[float] = []
            for policy, fetch in runs:
                on_run(f"closed loop, {lanes} lanes, {'with' if dram else 'no'} DRAM, {policy}")
                done = [_served(trace, context, policy, lanes, seed, dram, fetch) for seed in seeds]
                rates = [one.requests_per_s for one in done]
                usual = usual or rates
                points.append(ClosedPoint(
                    policy, lanes, dram, fetch, _mean(one.hits.token_hit_rate for one in done),
                    _mean(one.ttft_s.mean() for one in done), _mean(np.quantile(one.ttft_s, 0.9) for one in done),
                    _mean(one.sessions_completed for one in done), _mean(rates),
                    tuple(mine / lru - 1 for mine, lru in zip(rates, usual, strict=True)),
                ))  # fmt: skip
    return points


def capacity_blocks(block_size: int) -> int:
    """The blocks that the GPUs' memory holds beside the model."""
    limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
    room = kv_room(Deployment(MODEL, gpu=GPU, tensor_parallel_size=GPUS, **limits))
    return int((room.tokens or 0) // block_size)


def _served(trace, context, policy, lanes, seed, dram, fetch):
    """One run in the closed loop. Fetching before the arrival takes no time: the bound of any prefetch."""
    roofline = _roofline()
    rate = np.inf if fetch == BEFORE else DRAM_BYTES_PER_S
    tier = Tier("dram", DRAM_CONTEXTS * context, trace.block_size * roofline.model.kv_bytes_per_token / rate)
    return serve_closed(
        trace, roofline_cost(roofline),
        setting=Setting(capacity_blocks(trace.block_size), policy, mode="token"),
        loop=ClosedLoop(
            lanes=lanes, duration_s=DURATION_S, warm_up=5, start="inside", tree_idle_cap_s=300, seed=seed
        ),
        tiers=(tier,) if dram else (), prefetch=fetch != AT_ADMISSION,
    )  # fmt: skip


def _roofline() -> Roofline:
    return Roofline(model_shape(MODEL), gpu(GPU), GPUS)


def _mean(values) -> float:
    return float(np.mean(list(values)))
