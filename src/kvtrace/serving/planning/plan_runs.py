"""The simulation in time that every part of a plan uses: the one of `kvtrace simulate --gpu`, with lower tiers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..._base.errors import UsageError
from ..._base.step_work import report_work
from ..._base.units import size_bytes
from ...cache.demand import Mode
from ...cache.engines import EngineName
from ...cache.layout import CacheLayout
from ...cache.simulation import Setting
from ...trace.trace import Trace
from ..calibration.costs import CalibratedRoofline, roofline_cost
from ..hardware import Prices, Roofline
from ..lanes import ClosedLoop
from ..routers import FULL_ATTENTION, PLANNED
from ..schedulers import scheduler_of
from ..schedulers.base import BatchLimits, Scheduler, Tier
from ..serving_run import ServingRun
from ..simulation import StepCost, closed_loop, open_loop


@dataclass(frozen=True)
class LowerTier:
    """A tier below an instance's GPUs: DRAM, an SSD, or memory elsewhere.

    >>> parse_tier("dram=512GiB@25GB")
    LowerTier(name='dram', size=549755813888, bandwidth=25000000000)
    """

    name: str
    size: int  # bytes
    bandwidth: float  # bytes per second to the GPUs


@dataclass(frozen=True)
class PlanTarget:
    """The input of a plan: a target, the tiers below the GPUs, and the prices."""

    ttft_s: float = 2.0  # upper limit for `quantile` of the requests
    quantile: float = 0.9
    tiers: Sequence[LowerTier] = ()  # of an instance, the fastest first
    write_through: bool = False  # a tier also holds the blocks above it, as vLLM's always does; else only evicted ones
    prices: Prices = field(default_factory=Prices)
    limits: BatchLimits = field(default_factory=BatchLimits)
    routers: Sequence[str] = PLANNED
    mode: Mode = "block"  # how closely lengths are modelled, as in `simulate`; vLLM's scheduler implies grow
    engine: EngineName = "vllm"  # the scheduler and the cache of an instance; reference if it has fewer tiers
    layout: CacheLayout | None = None  # the cache groups that vLLM makes of the model; with tiers, they are not used
    loop: ClosedLoop | None = None  # plan lanes of a closed loop too; its number of lanes is not used

    @property
    def instance_engine(self) -> EngineName:
        """The engine of an instance: the one given, or reference if that has fewer lower tiers."""
        most = scheduler_of(self.engine).most_lower_tiers
        has_tiers = not self.tiers or (most is not None and len(self.tiers) <= most)
        return self.engine if has_tiers else "reference"

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of an instance, with its defaults."""
        return scheduler_of(self.instance_engine)

    @property
    def groups(self) -> CacheLayout | None:
        """The cache groups of an instance; None if all layers count as full attention."""
        return self.layout if self.engine == "vllm" and not self.tiers else None

    def with_routers(self) -> PlanTarget:
        """The target; of the default routers, with cache groups, those that do not count blocks of full attention."""
        if self.groups is None or tuple(self.routers) != PLANNED:
            return self
        return replace(self, routers=[name for name in PLANNED if name not in FULL_ATTENTION])

    def setting(self, blocks: int, block_bytes: int = 0) -> Setting:
        """The cache of an instance that holds `blocks` blocks, or cache groups in the memory of so many.

        Args:
            blocks: Blocks of all layers.
            block_bytes: Bytes of one of them; needed with cache groups.
        """
        if self.groups is not None and block_bytes:
            blocks = max(1, blocks * block_bytes // self.groups.block_bytes)
        return self.scheduler.setting_of(
            Setting(blocks, mode=self.mode, engine=self.instance_engine, layout=self.groups)
        )


def step_cost(roofline: Roofline) -> StepCost:
    """The time of a step of an instance, by the roofline of its GPUs and model: the `cost` of a simulation in time.

    Args:
        roofline: From `roofline_of(model_config, gpu)`, or calibrated, from `Costs.for_gpus`.

    Returns:
        Seconds per token and step, likewise of routed experts; and of attention, the head and what GPUs exchange, which
        overlap with nothing.
    """
    return roofline.cost if isinstance(roofline, CalibratedRoofline) else roofline_cost(roofline)


def parse_tier(text: str) -> LowerTier:
    """Parse a tier such as `dram=512GiB@25GB`: name, size, bytes per second; UsageError if it is not one."""
    match = re.fullmatch(r"(\w{1,20})=([^@]+)@([^@]+)", text)
    if not match or match[1] == "hbm":
        raise UsageError(f"{text!r} is not a tier. Try dram=512GiB@25GB: a name (not hbm), size, bytes per second.")
    return LowerTier(match[1], size_bytes(match[2]), size_bytes(match[3].removesuffix("/s")))


def lower_tiers(roofline: Roofline, target: PlanTarget, block_size: int, blocks: int) -> list[Tier]:
    """The lower tiers in blocks, for the simulation.

    A tier with write-through also holds the blocks above it; with LRU it adds only the capacity beyond them. Schedulers
    that write copies themselves get the whole capacity.
    """
    block_bytes = block_size * roofline.model.kv_bytes_per_token
    subtracts = target.write_through and not target.scheduler.copies_to_tiers
    lower, above = [], blocks
    for tier in target.tiers:
        own = int(tier.size // block_bytes) - (above if subtracts else 0)
        if own < 1:
            raise UsageError(f"Tier {tier.name} adds no block to the tiers above it. Give it a larger size.")
        lower.append(Tier(tier.name, own, block_bytes / tier.bandwidth))
        above += own
    return lower


def block_bytes_of(trace: Trace, roofline: Roofline) -> int:
    """Bytes of one of the trace's blocks in all layers."""
    return trace.block_size * roofline.model.kv_bytes_per_token


def capacity_blocks(trace: Trace, roofline: Roofline, limits: BatchLimits) -> int:
    """The blocks of KV that the GPUs of one instance hold, beside the activations of its largest steps."""
    return roofline.capacity_tokens(limits.step_tokens, limits.requests) // trace.block_size


def fitting_gpus(trace: Trace, roofline: Roofline, limits: BatchLimits) -> int:
    """The smallest number of GPUs that hold the weights and the longest request; UsageError if none does."""
    tokens = int(trace.prompt_blocks.max(initial=1)) * trace.block_size
    gpus = roofline.least_gpus(tokens, limits.step_tokens, limits.requests)
    if gpus is None:
        raise UsageError(
            f"No number of {roofline.gpu.name} holds the weights and the activations of {limits.step_tokens:,} tokens "
            "in a step. Use GPUs with more memory, or fewer --step-tokens and --max-requests."
        )
    return gpus


def served(
    trace: Trace,
    roofline: Roofline,
    target: PlanTarget,
    blocks: int,
    count: int,
    router: str,
    loop: ClosedLoop | None = None,
) -> ServingRun:
    """Serve the trace on `count` instances whose GPUs hold `blocks` blocks each, in the open loop or a closed one."""
    setting = target.setting(blocks, block_bytes_of(trace, roofline))
    how: dict[str, Any] = {
        "setting": setting, "instances": count, "router": router, "limits": target.limits,
        "tiers": lower_tiers(roofline, target, trace.block_size, blocks), "on_progress": report_simulated,
    }  # fmt: skip
    cost = step_cost(roofline)
    return open_loop(trace, cost, **how) if loop is None else closed_loop(trace, cost, loop=loop, **how)


def report_simulated(requests: int) -> None:
    """Report requests that a simulation of a plan has served, as work of the present part."""
    report_work(requests, requests=requests)


def prefill_alone_s(trace: Trace, cost: StepCost, limits: BatchLimits, cached: np.ndarray | int = 0) -> np.ndarray:
    """The time of each prompt on an idle instance, in steps of at most `limits.step_tokens`: no queue, no batch.

    Args:
        trace: The trace.
        cost: The time of a step.
        limits: The tokens of a step.
        cached: Prompt tokens of each request that hit; at least one token is computed.

    Returns:
        Request -> seconds, a lower bound of its time to first token.

    >>> from kvtrace.trace.building import toy
    >>> prefill_alone_s(toy("0 1 2"), StepCost(token_s=1.0, overhead_s=0.5), BatchLimits(step_tokens=2))
    array([4.])
    """
    end = trace.input_length.astype(np.float64)
    start = np.minimum(np.broadcast_to(np.asarray(cached, dtype=np.float64), end.shape), np.maximum(end - 1, 0))
    seconds = np.zeros(len(end))
    while (start < end).any():
        stop = np.minimum(start + limits.step_tokens, end)
        pairs = stop**2 - start**2
        tokens = stop - start
        compute = cost.token_s * tokens + cost.pair_s * pairs
        alone = cost.overhead_s + cost.request_s + cost.attention_pair_s * pairs + cost.attention_read_s * start
        touched = 1 - (1 - cost.expert_share) ** tokens
        experts = np.maximum(cost.expert_token_s * tokens, cost.expert_step_s * touched)
        step = np.maximum(compute, cost.step_s + cost.read_s * start) + experts + cost.exchange_s * tokens + alone
        seconds += np.where(stop > start, step, 0.0)
        start = stop
    return seconds
