"""vLLM's scheduler, step by step: version 0.33.0 (vllm/v1/core/sched/scheduler.py), for any layout of cache groups.

Checked against vLLM's own Scheduler and KVCacheManager, unmodified, under the same costs: each step's requests, tokens
and preemptions, and each request's hits and times (tests/clients/test_vllm_scheduler.py, tests/vectors).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..._base.errors import UsageError, wrong_word
from ...cache.demand import BlockDemand
from ...cache.layout import CacheLayout
from ...cache.simulation import Setting
from ...trace.trace import Trace
from .base import BatchLimits, Scheduler, Tier

TIER_POLICIES = ("lru", "arc")  # the orders in which its lower tier can evict blocks


@dataclass(frozen=True)
class VllmScheduler(Scheduler):
    """vLLM's scheduler; the options have vLLM's names, and the defaults of a server on an H100 or H200.

    Requests that run get tokens first; then waiting ones are admitted while tokens are left and their prompts fit. A
    request takes blocks as its tokens need them. If there are none, the last admitted request is preempted, and later
    computed again from the blocks that are still cached.

    >>> VllmScheduler(max_num_seqs=256).limits
    BatchLimits(step_tokens=8192, requests=256)
    """

    name: ClassVar[str] = "vllm"
    version: ClassVar[str] = "0.33.0"
    most_lower_tiers: ClassVar[int | None] = 1
    copies_to_tiers: ClassVar[bool] = True
    tier_fields: ClassVar[frozenset[str]] = frozenset({"policy", "scope", "latency_s", "copies"})
    layouts: ClassVar[bool] = True
    max_num_batched_tokens: int = 8192  # tokens in a step
    max_num_seqs: int = 1024  # requests that run at once
    async_scheduling: bool = True  # plan a step while the one before runs, as vLLM does by default
    long_prefill_token_threshold: int = 0  # the largest chunk of a prompt while others run or wait; 0 = no limit
    long_prefill_token_threshold_adaptive: bool = False  # a chunk is at least an equal share of the step's tokens
    scheduler_reserve_full_isl: bool = True  # admit a request only if its whole prompt fits
    watermark: float = 0.0  # share of the blocks that stay free when a request is admitted beside others
    policy: Literal["fcfs", "priority"] = "fcfs"  # priority: by the column `priority` of the trace, the lowest first

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < 1 or self.max_num_seqs < 1:
            raise UsageError("max_num_batched_tokens and max_num_seqs must be at least 1.")
        if self.long_prefill_token_threshold < 0:
            raise UsageError("long_prefill_token_threshold must be at least 0.")
        if not 0 <= self.watermark < 1:
            raise UsageError("watermark must be at least 0 and below 1.")
        if self.policy not in ("fcfs", "priority"):
            raise wrong_word(self.policy, "a policy of vLLM's scheduler", ("fcfs", "priority"))

    @property
    def limits(self) -> BatchLimits:
        """Its tokens per step and requests at once."""
        return BatchLimits(self.max_num_batched_tokens, self.max_num_seqs)

    def limited(self, limits: BatchLimits) -> Self:
        """The scheduler with other limits, and its other options."""
        return replace(self, max_num_batched_tokens=limits.step_tokens, max_num_seqs=limits.requests)

    def setting_of(self, setting: Setting) -> Setting:
        """The setting in mode grow: this scheduler counts the tokens of prompts and outputs."""
        if setting.engine != "vllm":
            raise UsageError(f"vLLM's scheduler runs with vLLM's cache, not with {setting.engine}. Use --engine vllm.")
        if setting.policy != "lru":
            raise UsageError(f"Engine vllm does not have policy {setting.policy!r}. Try lru.")
        return replace(setting, mode="grow")

    def lengths(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of each prompt and output. vLLM takes at least one of each: an empty prompt is one token."""
        tokens = np.maximum(trace.input_length, 1)
        return tokens, np.maximum(trace.output_length - (tokens - trace.input_length), 1)

    @property
    def in_flight(self) -> int:
        """The most tokens of steps that have not ended."""
        return self.max_num_batched_tokens * (2 if self.async_scheduling else 1)

    def needs(self, demand: BlockDemand, setting: Setting) -> np.ndarray:
        """The most blocks that a request can hold; vLLM does not start with fewer for its longest one."""
        if setting.layout is None:
            return demand.max_blocks
        tokens, output = self.lengths(demand.trace)
        drafts = setting.drafting.tokens if setting.drafting else 0
        total = np.zeros(len(tokens), dtype=np.int64)
        for group in setting.layout.groups:
            places = -(-(tokens + output - 1 + drafts * (group.kind != "state")) // group.block_size)
            if group.kind == "window":
                max_places = -(-(group.window - 1 + self.in_flight) // group.block_size) + 1
            elif group.kind == "chunk":
                max_places = -(-(group.window + self.in_flight) // group.block_size)
            else:  # a state, those before it that a step in flight still reads, and one saved within a chunk
                max_places = 2 + self.async_scheduling + (setting.layout.internal_checkpoint_alignment > 0)
            total += places if group.kind == "full" else np.minimum(places, max_places)
            total += drafts * (group.kind == "state")
        return total

    def engines(
        self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int
    ) -> list[Any]:
        """The caches of several instances; the second tier below them may be shared."""
        engines = [self.engine(setting, demand, tiers[:1]) for _ in range(instances)]
        if len(tiers) < 2:
            return engines
        share = {"rank": 1, "host": per_host, "cluster": instances}[tiers[1].scope]
        for first in range(0, instances, share):
            pool = self._pool(demand, tiers)
            for engine in engines[first : first + share]:
                engine.lower.pool = pool
        return engines

    def engine(self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """vLLM's cache, which gives out blocks one by one."""
        from ...cache.core.blocks import PagedCache
        from ...cache.engines.vllm import verify
        from ...cache.policies.base import Context

        if tiers and setting.drafting:
            raise UsageError("A drafter (--speculative) is not modelled with lower tiers. Leave out one of them.")
        context = Context(demand.blocks, setting.capacity, demand.trace, demand)
        free_order = dict(setting.engine_options).get("free_order", "prepend")
        if setting.layout is not None:
            verify(setting.layout, demand, free_order)
            return self._grouped(context, demand, setting.layout, tiers)
        cache = PagedCache(context, demand, free_order == "prepend")
        if tiers:
            cache.lower = self._lower_tier(cache, tiers)
        return cache

    def _grouped(self, context: Any, demand: BlockDemand, layout: CacheLayout, tiers: Sequence[Tier]) -> Any:
        """vLLM's cache for groups of layers. UsageError for what it does not support."""
        from ...cache.core.grouped_cache import GroupedSteps

        if tiers:
            raise UsageError("Lower tiers do not support cache groups. Leave out the tiers, or the cache groups.")
        chunk = min(limit for limit in (self.max_num_batched_tokens, self.long_prefill_token_threshold) if limit)
        layout = replace(layout, step_tokens=chunk)
        return GroupedSteps(context, demand, layout, self.lengths(demand.trace), self.in_flight)

    def _lower_tier(self, cache: Any, tiers: Sequence[Tier]) -> Any:
        """The tier of vLLM's OffloadingConnector. UsageError for a tier that is not valid."""
        from ...cache.core.lower_tier import LowerTier

        (tier,) = tiers
        _require_blocks(tier)
        policy = tier.policy or "lru"
        if policy not in TIER_POLICIES:
            raise UsageError(f"{policy!r} is not an order of eviction of vLLM's lower tier. Try lru or arc.")
        if tier.scope != "rank" or tier.latency_s or tier.copies not in (None, "write-through"):
            raise UsageError(
                f"vLLM's tier {tier.name} belongs to one instance, which writes through to it; it has no latency. "
                "Instances can share a second tier: --tiers hbm=5000,dram=50000@25GB/s,pool=1M@cluster@10GB/s."
            )
        lower = LowerTier(cache, tier.capacity, policy)
        lower.fetch_seconds, lower.store_seconds = tier.fetch_seconds, _store_seconds(tier)
        return lower

    def _pool(self, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """The secondary tier of vLLM's TieringOffloadingSpec. UsageError for more tiers, or one that is not valid."""
        from ..core.vllm_offloading import SharedPool

        if len(tiers) > 2:
            raise UsageError("vLLM's scheduler has two lower tiers here. Leave out one, or use --engine reference.")
        pool = tiers[1]
        _require_blocks(pool)
        if pool.policy not in (None, "lru") or pool.copies not in (None, "write-through"):
            raise UsageError(
                f"vLLM writes through to its tier {pool.name}, which evicts by lru. Leave out other words."
            )
        return SharedPool(demand.blocks, pool.capacity, pool.fetch_seconds, _store_seconds(pool), pool.latency_s)

    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool, log: bool = False) -> Any:
        """An instance that takes vLLM's steps. With `log` it records them."""
        from ..core.vllm import VllmInstance
        from ..core.vllm_offloading import OffloadingInstance

        kind = VllmInstance if engine.lower is None else OffloadingInstance
        return kind(engine, requests, cost, self.kernel_limits(engine), log)

    def worker(self, engine: Any, requests: Any, cost: dict[str, float], *, log: bool = False) -> Any:
        """A worker of one kind, with the NixlConnector."""
        from ..core.apart import VllmWorker

        return VllmWorker(engine, requests, cost, self.kernel_limits(engine), log)

    def ranks(
        self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, log: bool = False, group: Any = None
    ) -> list[Any]:
        """Data-parallel ranks of a model with experts, in a VllmLockstep or another `group`. UsageError with a lower
        tier.
        """
        from ..core.lockstep import VllmLockstep, VllmRank

        if engines[0].lower is not None:
            raise UsageError("Ranks in lockstep do not support lower tiers. Leave out the tiers.")
        ranks = [VllmRank(engine, requests, cost, self.kernel_limits(engine), log) for engine in engines]
        (group or VllmLockstep)(ranks, cost)
        return ranks

    def kernel_limits(self, engine: Any) -> dict[str, Any]:
        """The fields of VllmLimits."""
        return {
            "step_tokens": self.max_num_batched_tokens, "requests": self.max_num_seqs,
            "watermark": int(self.watermark * (engine.context.capacity + 1)),  # vLLM counts its null block
            "long_prefill": self.long_prefill_token_threshold,
            "adaptive_long_prefill": self.long_prefill_token_threshold_adaptive,
            "whole_prompt": self.scheduler_reserve_full_isl, "by_priority": self.policy == "priority",
            "asynchronous": self.async_scheduling,
        }  # fmt: skip


def _require_blocks(tier: Tier) -> None:
    if tier.capacity < 1:
        raise UsageError(f"Tier {tier.name} must have at least 1 block.")


def _store_seconds(tier: Tier) -> float:
    return tier.fetch_seconds if tier.store_seconds is None else tier.store_seconds
