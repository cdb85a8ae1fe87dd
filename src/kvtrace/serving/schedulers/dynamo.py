"""NVIDIA Dynamo's mocked engine: the scheduler and the step times of its offline replay (ai-dynamo-runtime 1.6.1).

The scheduler takes vLLM's steps; the times are its own. A tier below belongs to a worker (Dynamo's dp_rank_local), or
all workers share it (cluster_shared). Checked against the replay: each request's hits by source, admission, first
token, end and preemptions (tests/clients/test_dynamo_times.py, tests/vectors). docs/serving/dynamo.md has the figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from ..._base.errors import UsageError
from ..._base.xxh3 import xxh3_64_of_pairs, xxh3_64_of_repeated
from ...cache.demand import BlockDemand
from ...cache.simulation import Setting
from ...trace.trace import Trace
from .base import BatchLimits, Scheduler, Tier
from .vllm import VllmScheduler


@dataclass(frozen=True)
class DynamoCost:
    """The seconds of a step in Dynamo's offline replay: a polynomial of prompt tokens, and one of context tokens.

    A step that computes T prompt tokens takes `prefill_square_s` T^2 + `prefill_token_s` T + `prefill_step_s`. Dynamo
    counts T by whole-number means: with n prompts, T = n x (mean of the tokens after the step - mean before it). A step
    that decodes takes `decode_square_s` u^2 + `decode_used_s` u + `decode_step_s` more, where u is the share of the
    cache that the contexts of the decoding requests would fill without sharing, at most 1. The defaults are Dynamo's.

    >>> cost = DynamoCost()
    >>> round(cost.prefill_square_s * 8192**2 + cost.prefill_token_s * 8192 + cost.prefill_step_s, 4)
    0.1691
    """

    prefill_square_s: float = 4.209989e-10
    prefill_token_s: float = 1.518344e-5
    prefill_step_s: float = 1.650142e-2
    decode_square_s: float = -2.574e-2
    decode_used_s: float = 5.401e-2
    decode_step_s: float = 5.74e-3

    def terms(self, cache_tokens: int) -> dict[str, float]:
        """Terms of the kernel for a cache of `cache_tokens` tokens. `token_s` is what a fetch from below saves."""
        terms = asdict(self)
        used_s = terms.pop("decode_used_s")
        return terms | {
            "is_polynomial": True, "cache_tokens": cache_tokens, "decode_token_s": used_s / cache_tokens,
            "decode_square_s": self.decode_square_s / cache_tokens**2, "token_s": self.prefill_token_s,
        }  # fmt: skip

    def terms_ms(self, cache_tokens: int) -> dict[str, float]:
        """Terms of the kernel of prefill and decode workers: in ms, that of decoding by the share of the cache."""
        terms = {name: float(f"{1000 * value:.12g}") for name, value in asdict(self).items()}
        return terms | {
            "decode_token_s": terms.pop("decode_used_s"),
            "is_polynomial": True,
            "cache_tokens": cache_tokens,
        }

    def front(self, tokens: np.ndarray, servers: int | np.ndarray) -> tuple[np.ndarray, float]:
        """No API server stands before Dynamo's mocked engines."""
        return np.zeros(len(tokens)), 0.0


@dataclass(frozen=True)
class DynamoScheduler(Scheduler):
    """The scheduler of Dynamo's mocked engine: vLLM's, without asynchronous scheduling; its names and defaults.

    >>> DynamoScheduler().limits
    BatchLimits(step_tokens=8192, requests=256)
    """

    name: ClassVar[str] = "dynamo"
    version: ClassVar[str] = "1.6.1"
    most_lower_tiers: ClassVar[int | None] = 1
    copies_to_tiers: ClassVar[bool] = True
    tier_fields: ClassVar[frozenset[str]] = frozenset({"scope", "copies", "policy", "latency_s"})
    max_num_batched_tokens: int = 8192  # tokens in a step
    max_num_seqs: int = 256  # requests that run at once
    # seconds per block on the link of each worker to a tier that all share; the tier has those of the common link
    worker_fetch_seconds: float = 0.0
    worker_store_seconds: float = 0.0
    aic_nextn: int = 0  # tokens that multi-token prediction drafts in a step
    aic_nextn_accept_rates: str = "0.85:0.3"  # of each drafted token if those before it were accepted; others: 0
    aic_mtp_seed: int = 42  # of the draws

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < 1 or self.max_num_seqs < 1:
            raise UsageError("max_num_batched_tokens and max_num_seqs must be at least 1.")
        if min(self.worker_fetch_seconds, self.worker_store_seconds) < 0:
            raise UsageError("worker_fetch_seconds and worker_store_seconds must be at least 0.")
        if not 0 <= self.aic_nextn <= MOST_DRAFTED or self.aic_mtp_seed < 0:
            raise UsageError(f"aic_nextn must be from 0 to {MOST_DRAFTED}, and aic_mtp_seed at least 0.")
        self.accept_rates()  # a wrong text is refused here

    def accept_rates(self) -> list[float]:
        """The acceptance rate of each drafted token; UsageError if the text does not have rates from 0 to 1.

        >>> DynamoScheduler(aic_nextn=3).accept_rates()
        [0.85, 0.3, 0.0]
        """
        try:
            rates = [float(rate) for rate in re.split("[:,]", self.aic_nextn_accept_rates)]
        except ValueError:
            rates = [-1.0]
        if not all(0 <= rate <= 1 for rate in rates):
            raise UsageError(f"{self.aic_nextn_accept_rates!r} is not a list of rates from 0 to 1. Example: 0.85:0.3.")
        return (rates + [0.0] * self.aic_nextn)[: self.aic_nextn]

    @property
    def limits(self) -> BatchLimits:
        """Its tokens per step and requests at once."""
        return BatchLimits(self.max_num_batched_tokens, self.max_num_seqs)

    def limited(self, limits: BatchLimits) -> Self:
        """The scheduler with other limits."""
        return replace(self, max_num_batched_tokens=limits.step_tokens, max_num_seqs=limits.requests)

    @property
    def as_vllm(self) -> VllmScheduler:
        """vLLM's scheduler with the same rules."""
        return VllmScheduler(self.max_num_batched_tokens, self.max_num_seqs, async_scheduling=False)

    def setting_of(self, setting: Setting) -> Setting:
        """The setting in mode grow, of engine dynamo."""
        if setting.engine != "dynamo":
            raise UsageError(
                f"Dynamo's scheduler runs with its own cache, not with {setting.engine}. Use --engine dynamo."
            )
        return replace(self.as_vllm.setting_of(replace(setting, engine="vllm")), engine="dynamo")

    def lengths(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of each prompt and output, at least one of each."""
        return self.as_vllm.lengths(trace)

    def needs(self, demand: BlockDemand, setting: Setting) -> np.ndarray:
        """The most blocks that a request holds. With multi-token prediction, also for its last token."""
        if not self.aic_nextn:
            return demand.max_blocks
        return -(-np.sum(self.lengths(demand.trace), axis=0) // demand.trace.block_size)

    def engine(self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """vLLM's cache, which gives out blocks one by one."""
        return self.engines(setting, demand, tiers, 1, 1)[0]

    def engines(
        self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int
    ) -> list[Any]:
        """The caches of several workers, each with a tier, or all with the same one. UsageError for other tiers."""
        from ...cache.core.lower_tier import DynamoTier

        if self.aic_nextn:  # a drafted token may take a block more than the request keeps
            more = self.needs(demand, setting) - demand.max_blocks
            demand = replace(demand, grown_tail=(demand.grown_tail + more).astype(np.int8))
        caches = [self.as_vllm.engine(setting, demand, ()) for _ in range(instances)]
        if not tiers:
            return caches
        if self.aic_nextn:
            raise UsageError("Dynamo's replay has no lower tiers with multi-token prediction. Leave out one of them.")
        tier, order, rows = self._one_tier(tiers), hash_ranks(demand), len(demand.full)
        fetch_seconds = tier.fetch_seconds
        link = (fetch_seconds if tier.store_seconds is None else tier.store_seconds, fetch_seconds)
        if tier.scope == "cluster":
            own = (self.worker_store_seconds, self.worker_fetch_seconds)
            shared = DynamoTier(tier.capacity, order, rows, own, link, tier.latency_s, True, instances)
            clients = [shared.client(number) for number in range(instances)]
        else:
            owned = [DynamoTier(tier.capacity, order, rows, link, latency=tier.latency_s) for _ in caches]
            clients = [one.client(0) for one in owned]
        for cache, client in zip(caches, clients, strict=True):
            cache.lower = client
        return caches

    def _one_tier(self, tiers: Sequence[Tier]) -> Tier:
        """The only tier. UsageError for several, or for one that Dynamo's workers do not have."""
        if len(tiers) > 1:
            raise UsageError("Dynamo's mocked workers have one lower tier. Give one, or use --engine reference.")
        (tier,) = tiers
        if tier.capacity < 1:
            raise UsageError(f"Tier {tier.name} must have at least 1 block.")
        if tier.scope == "host" or tier.policy not in (None, "lru") or tier.copies not in (None, "write-through"):
            raise UsageError(
                f"Tier {tier.name}: Dynamo's tier belongs to a rank or to the cluster, copies write-through, and "
                "evicts by lru. Leave out other words."
            )
        return tier

    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool, log: bool = False) -> Any:
        """An instance that takes vLLM's steps. With `log` it records them."""
        from ..core.dynamo import DynamoTierInstance

        if engine.lower is None:
            return self.as_vllm.instance(engine, requests, cost, prefetch=prefetch, log=log)
        return DynamoTierInstance(engine, requests, cost, self.as_vllm.kernel_limits(engine), log)

    def workers(self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, prefetch: bool) -> list[Any]:
        """The workers with these caches; with multi-token prediction, each has draws of its own."""
        from ..core.dynamo import DynamoMtpInstance

        if not self.aic_nextn:
            return super().workers(engines, requests, cost, prefetch=prefetch)
        if not cost.get("is_polynomial"):
            raise UsageError("aic_nextn has the step times of Dynamo's replay alone. Leave out --gpu, or aic_nextn.")
        limits, rates, seed = self.as_vllm.kernel_limits(engines[0]), self.accept_rates(), self.aic_mtp_seed
        return [
            DynamoMtpInstance(engine, requests, cost, limits, rates, seed + number)
            for number, engine in enumerate(engines)
        ]

    def ranks(self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, log: bool = False) -> list[Any]:
        """The data-parallel ranks of one worker."""
        from ..core.lockstep import DynamoLockstep

        return self.as_vllm.ranks(engines, requests, cost, log=log, group=DynamoLockstep)


MOST_DRAFTED = 5  # tokens
HASH_SEED = 1337  # Dynamo's


def hash_ranks(demand: BlockDemand) -> np.ndarray:
    """The rank of each block's hash in the replay (int64), by which it orders blocks that were used at one moment.

    The replay numbers the ids of a trace in order of their first appearance, and fills each block with its number. A
    block's hash is XXH3-64 of that, chained with the hash of the block before. Blocks without a hash have rank 0.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> hash_ranks(block_demand(toy("0 1", "0 2"), "grow")).tolist()[:3]
    [2, 0, 1]
    """
    trace = demand.trace
    _, first, number = np.unique(trace.hash_ids, return_index=True, return_inverse=True)
    appearance = np.argsort(np.argsort(first))[number]  # position in hash_ids -> number of its id
    place = np.arange(len(demand.ids)) - np.repeat(demand.start, np.diff(np.append(demand.start, len(demand.ids))))
    full = place < np.repeat(demand.full, np.diff(np.append(demand.start, len(demand.ids))))
    blocks, at = np.unique(demand.ids[full], return_index=True)  # block -> where it is first
    at = np.flatnonzero(full)[at]
    hashes = np.zeros(demand.blocks, dtype=np.uint64)
    hashes[blocks] = xxh3_64_of_repeated(appearance[at], trace.block_size, HASH_SEED)
    order = np.argsort(place[at], kind="stable")
    for level in np.split(order, np.flatnonzero(np.diff(place[at][order])) + 1):
        if len(level) and place[at[level[0]]]:
            parents = hashes[demand.ids[at[level] - 1]]
            hashes[blocks[level]] = xxh3_64_of_pairs(parents, hashes[blocks[level]], HASH_SEED)
    ranks = np.zeros(demand.blocks, dtype=np.int64)
    ranks[blocks] = np.argsort(np.argsort(hashes[blocks]))
    return ranks
