"""SGLang's scheduler, step by step: version 0.5.23 (srt/managers/scheduler.py), for full attention on one rank.

Its twin was checked against SGLang's own Scheduler and radix tree, unmodified, under the same costs: each step's
requests, tokens and retractions, and each request's hits and times (tests/clients/test_sglang_scheduler.py). So was
that of HiCache's host memory in time, with its own HiCache whose copies take the times of a link
(tests/clients/test_sglang_hicache.py): each transfer is one copy after the other in its direction, and the layers of a
model are taken as many, so that a step waits for the last of what it loads and for no other. And so were its workers
of one kind (tests/clients/test_sglang_apart.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..._base.errors import UsageError, wrong_word
from ...cache.demand import BlockDemand
from ...cache.simulation import Setting
from ...trace.trace import Trace
from .base import BatchLimits, Scheduler, Tier

POLICIES = ("fcfs", "lpm")
RETRACTIONS = ("length", "priority")
PREFETCHES = ("best_effort", "wait_complete", "timeout")
BATCH_PAGES = 128  # of a transfer from and to the storage: SGLang's STORAGE_BATCH_SIZE
WRITE_POLICY = "hicache_write_policy"  # the engine option
LIMIT = "max_new_tokens"  # the column of the trace with the largest output that each client allows


@dataclass(frozen=True)
class SglangScheduler(Scheduler):
    """SGLang's scheduler; the options have SGLang's names, and the defaults of a server on an H100 or H200.

    A step is a prefill if one can be made, else a decode. A request is admitted if its prompt and the outputs that it
    and the active requests are expected to have fit. If the next tokens do not fit, the requests with the fewest
    outputs are retracted: they give up their pages and are computed again from what is still cached.

    A request's largest output (`max_new_tokens`) is in the trace's column of that name; without it, the output's own
    length is used. SGLang cuts it to what fits beside the prompt.

    >>> SglangScheduler(max_running_requests=256).limits
    BatchLimits(step_tokens=8192, requests=256)
    """

    name: ClassVar[str] = "sglang"
    version: ClassVar[str] = "0.5.23"
    most_lower_tiers: ClassVar[int | None] = 1
    copies_to_tiers: ClassVar[bool] = True  # with write_through, its default
    tier_fields: ClassVar[frozenset[str]] = frozenset({"scope", "latency_s"})
    chunked_prefill_size: int = 8192  # tokens of a prefill; -1 = prompts are not divided
    max_prefill_tokens: int = 16384  # a prefill with this many tokens takes no further request
    max_running_requests: int = 2048
    page_size: int | None = None  # tokens; None = the trace's block size (SGLang's own default is 1)
    scheduler_recv_interval: int = 1  # decode steps from one look for new requests to the next
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"  # lpm: the longest cached prefix first
    schedule_conservativeness: float = 1.0  # larger: fewer requests at once, and fewer retractions
    enable_mixed_chunk: bool = False  # active requests decode in the step of a prefill
    disable_overlap_schedule: bool = False  # plan a step when the one before has ended
    enable_priority_scheduling: bool = False  # the queue is sorted by the column `priority` of the trace
    disable_priority_preemption: bool = False
    priority_scheduling_preemption_threshold: int = 10  # who is preempted has a priority lower by more than this
    schedule_low_priority_values_first: bool = False
    retraction_policy: Literal["length", "priority"] = "length"  # priority: the lowest priority is retracted first
    num_reserved_decode_tokens: int = 512  # for the next outputs of each request, on a decode worker
    disaggregation_decode_enable_radix_cache: bool = False  # a decode worker receives what does not hit there
    hicache_storage_prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] = (
        "timeout"  # what ends a prefetch
    )
    prefetch_threshold: int = 256  # tokens of a prefetch from the storage, at least
    prefetch_timeout_base: float = 1.0  # seconds, with timeout, from the first look at a request whose prefetch goes on
    prefetch_timeout_per_ki_token: float = 0.25  # seconds more
    hicache_storage_prefetch_retry_poll_interval: int = (
        8  # plans until what was not found is asked for again; 0 = never
    )
    hicache_storage_prefetch_retry_max_attempts: int = 8
    ignore_eos: bool = False  # outputs have a known length
    init_new_token_ratio: float = 0.7  # SGLang's environment: SGLANG_INIT_NEW_TOKEN_RATIO
    min_new_token_ratio_factor: float = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
    new_token_ratio_decay_steps: int = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
    retract_decode_steps: int = 20  # SGLANG_RETRACT_DECODE_STEPS
    clip_max_new_tokens_estimation: int = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION

    def __post_init__(self) -> None:
        self._check_sizes()
        if self.schedule_policy not in POLICIES:
            raise wrong_word(self.schedule_policy, "a supported schedule_policy", POLICIES)
        if self.retraction_policy not in RETRACTIONS:
            raise wrong_word(self.retraction_policy, "a retraction_policy", RETRACTIONS)
        if self.hicache_storage_prefetch_policy not in PREFETCHES:
            raise wrong_word(self.hicache_storage_prefetch_policy, "a hicache_storage_prefetch_policy", PREFETCHES)
        if self.enable_mixed_chunk and 0 < self.chunked_prefill_size <= self.max_running_requests:
            raise UsageError("With enable_mixed_chunk, chunked_prefill_size must be above max_running_requests.")

    def _check_sizes(self) -> None:
        if self.chunked_prefill_size < 1 and self.chunked_prefill_size != -1:
            raise UsageError("chunked_prefill_size must be at least 1, or -1.")
        for name in (
            "max_prefill_tokens", "max_running_requests", "new_token_ratio_decay_steps", "scheduler_recv_interval",
            "prefetch_threshold",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1.")
        for name in (
            "retract_decode_steps",
            "clip_max_new_tokens_estimation",
            "priority_scheduling_preemption_threshold",
            "hicache_storage_prefetch_retry_poll_interval",
            "hicache_storage_prefetch_retry_max_attempts",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0.")
        for name in (
            "schedule_conservativeness", "init_new_token_ratio", "min_new_token_ratio_factor",
            "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be at least 0, and finite.")
        if self.page_size is not None and self.page_size < 1:
            raise UsageError("page_size must be at least 1.")

    @property
    def limits(self) -> BatchLimits:
        """Its tokens per step and requests at once."""
        tokens = self.max_prefill_tokens if self.chunked_prefill_size < 0 else self.chunked_prefill_size
        return BatchLimits(tokens, self.max_running_requests)

    def limited(self, limits: BatchLimits) -> Self:
        """The scheduler with other limits, and its other options."""
        return replace(self, chunked_prefill_size=limits.step_tokens, max_running_requests=limits.requests)

    def setting_of(self, setting: Setting) -> Setting:
        """The setting in mode grow: this scheduler counts the tokens of prompts and outputs."""
        if setting.engine != "sglang":
            raise UsageError(
                f"SGLang's scheduler runs with SGLang's cache, not with {setting.engine}. Use --engine sglang."
            )
        if setting.policy != "lru":
            raise UsageError(f"SGLang's scheduler does not support policy {setting.policy!r} yet. Try lru.")
        if dict(setting.engine_options).get("tree") == "radix":
            raise UsageError("SGLang's scheduler runs with its unified tree. Leave out --tree.")
        return replace(setting, mode="grow")

    def lengths(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of each prompt and output; an empty prompt or output is one token."""
        return np.maximum(trace.input_length, 1), np.maximum(trace.output_length, 1)

    def needs(self, demand: BlockDemand, setting: Setting) -> np.ndarray:
        """The smallest capacity in blocks at which each request is served: SGLang cuts an output to what fits."""
        trace = demand.trace
        page = self._page_size(trace.block_size)
        return (self.lengths(trace)[0] + page) // trace.block_size + 1

    def engine(self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """SGLang's tree, which gives out pages one by one."""
        tokens, how = setting.capacity * demand.trace.block_size, dict(setting.engine_options).get(WRITE_POLICY)
        if how and not tiers:
            raise UsageError("--hicache-write-policy needs host memory: --tiers dram=50000@25GB/s.")
        return self.cache(demand, tokens, tiers[0] if tiers else None, how or "write_through")

    def engines(
        self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int
    ) -> list[Any]:
        """The trees of several instances; the second tier below them may be shared."""
        for tier in tiers[:1]:
            if tier.scope != "rank" or tier.latency_s:
                raise UsageError(
                    f"SGLang's host memory, {tier.name}, belongs to one instance and has no latency. Instances can "
                    "share a second tier: --tiers hbm=5000,dram=50000@25GB/s,pool=1M@cluster@10GB/s."
                )
        if len(tiers) > 2:
            raise UsageError("SGLang has three tiers at most: --tiers hbm=5000,dram=50000@25GB/s,pool=1M@10GB/s.")
        engines = [self.engine(setting, demand, tiers[:1]) for _ in range(instances)]
        if len(tiers) == 2:
            share = {"rank": 1, "host": per_host, "cluster": instances}[tiers[1].scope]
            for first in range(0, instances, share):
                self.attach_storage(engines[first : first + share], tiers[1])
        return engines

    def attach_storage(self, engines: Sequence[Any], tier: Tier, batch_pages: int = BATCH_PAGES) -> Any:
        """Put a storage backend below the host memories of instances that share it; returns it."""
        from ...cache.core.hicache import Storage, TimedStorage

        trace = engines[0].context.trace
        page = self._page_size(trace.block_size)
        if tier.capacity < 1:
            raise UsageError(f"Tier {tier.name} must have at least 1 block.")
        store_s = tier.fetch_seconds if tier.store_seconds is None else tier.store_seconds
        blocks = page / trace.block_size
        capacity = tier.capacity * trace.block_size // page
        shared = TimedStorage(capacity, tier.fetch_seconds * blocks, store_s * blocks, tier.latency_s, batch_pages)
        options = {
            "policy": self.hicache_storage_prefetch_policy, "threshold": self.prefetch_threshold,
            "timeout_base": self.prefetch_timeout_base,
            "timeout_per_page": page / 1024 * self.prefetch_timeout_per_ki_token,
            "retry_interval": self.hicache_storage_prefetch_retry_poll_interval,
            "retry_attempts": self.hicache_storage_prefetch_retry_max_attempts,
        }  # fmt: skip
        for engine in engines:
            engine.attach(Storage(shared, engine, options))
        return shared

    def cache(
        self, demand: BlockDemand, tokens: int, host: Tier | None = None, write_policy: str = "write_through"
    ) -> Any:
        """SGLang's tree with a pool of `tokens` tokens, and host memory below it."""
        from ...cache.core.hicache import HiPagedRadix
        from ...cache.core.radix import PagedRadix
        from ...cache.policies.base import Context

        page, block = self._page_size(demand.trace.block_size), demand.trace.block_size
        context = Context(demand.blocks, tokens // block, demand.trace, demand)
        if host is None:
            return PagedRadix(context, demand, page, tokens)
        if demand.drafting is not None:
            raise UsageError("SGLang's host memory is not modelled with a drafter. Leave out --speculative.")
        store_s = host.fetch_seconds if host.store_seconds is None else host.store_seconds
        pages = host.capacity * block // page
        return HiPagedRadix(
            context, demand, page, tokens, pages, write_policy, host.fetch_seconds / block, store_s / block
        )

    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool, log: bool = False) -> Any:
        """An instance that takes SGLang's steps. With `log` it records them."""
        from ..core.sglang import SglangInstance

        return SglangInstance(engine, requests, cost, self._core_limits(), self._largest_outputs(engine), log)

    def worker(self, engine: Any, requests: Any, cost: dict[str, float], *, log: bool = False) -> Any:
        """A worker of one kind."""
        return self.instance(engine, requests, cost, prefetch=False, log=log)

    def receive(self, workers: Sequence[Any]) -> None:
        """Give decode workers their options."""
        if self.enable_priority_scheduling and self.schedule_policy == "lpm":
            raise UsageError("Decode workers with priorities are modelled with schedule_policy=fcfs. Set it.")
        for worker in workers:
            worker.receive(self.num_reserved_decode_tokens, self.disaggregation_decode_enable_radix_cache)

    def ranks(self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, log: bool = False) -> list[Any]:
        """Data-parallel ranks with data-parallel attention."""
        from ..core.lockstep import SglangLockstep, SglangRank

        if hasattr(engines[0], "tier_hits"):
            raise UsageError("Ranks in lockstep are not modelled with SGLang's host memory. Leave out --tiers.")
        limits, outputs = self._core_limits(), self._largest_outputs(engines[0])
        ranks = [SglangRank(engine, requests, cost, limits, outputs, log) for engine in engines]
        SglangLockstep(ranks, cost)
        return ranks

    def _largest_outputs(self, engine: Any) -> np.ndarray:
        """The output tokens of each request that its client allows."""
        trace = engine.context.trace
        limits = trace.extra.get(LIMIT)
        has_limits = isinstance(limits, np.ndarray) and limits.dtype.kind in "iu"
        return limits if has_limits else self.lengths(trace)[1]

    def _core_limits(self) -> dict[str, float]:
        first = min(self.init_new_token_ratio * self.schedule_conservativeness, 1.0)
        least = min(first * self.min_new_token_ratio_factor, 1.0)
        chunk = max(self.chunked_prefill_size, 0)
        return {
            "seats": self.max_running_requests, "prefill_tokens": self.max_prefill_tokens, "chunk_tokens": chunk,
            "longest_match": self.schedule_policy == "lpm", "mixed": self.enable_mixed_chunk and chunk > 0,
            "overlap": not self.disable_overlap_schedule,
            "by_priority": self.enable_priority_scheduling and self.schedule_policy == "fcfs",
            "preempts": self.enable_priority_scheduling and not self.disable_priority_preemption,
            "threshold": self.priority_scheduling_preemption_threshold,
            "retract_by_priority": self.retraction_policy == "priority",
            "sign": 1 if self.schedule_low_priority_values_first else -1, "ignore_eos": self.ignore_eos,
            "clip": self.clip_max_new_tokens_estimation, "retract_steps": self.retract_decode_steps,
            "first_ratio": first, "least_ratio": least, "decay": (first - least) / self.new_token_ratio_decay_steps,
            "poll_every": self.scheduler_recv_interval,
        }  # fmt: skip

    def _page_size(self, block_size: int) -> int:
        """The page size on a trace of this block size. UsageError where SGLang would refuse it."""
        page = self.page_size or block_size
        if self.chunked_prefill_size > 0 and self.chunked_prefill_size % page:
            raise UsageError(f"chunked_prefill_size must be a multiple of the page size, {page:,} tokens.")
        return page
