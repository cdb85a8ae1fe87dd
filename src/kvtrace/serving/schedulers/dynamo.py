"""NVIDIA Dynamo's mocked engine: the scheduler and the step times of its offline replay (ai-dynamo-runtime 1.6.1).

The scheduler takes vLLM's steps; the times are its own. Checked against the replay: each request's hits, admission,
first token, end and preemptions (tests/clients/test_dynamo_times.py, tests/vectors). docs/serving/dynamo.md has the
figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from ..._base.errors import UsageError
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
    max_num_batched_tokens: int = 8192  # tokens in a step
    max_num_seqs: int = 256  # requests that run at once

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < 1 or self.max_num_seqs < 1:
            raise UsageError("max_num_batched_tokens and max_num_seqs must be at least 1.")

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

    def engine(self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """vLLM's cache, which gives out blocks one by one."""
        if tiers:
            raise UsageError("Dynamo's scheduler does not support lower tiers. Use --engine vllm or reference.")
        return self.as_vllm.engine(setting, demand, tiers)

    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool, log: bool = False) -> Any:
        """An instance that takes vLLM's steps. With `log` it records them."""
        return self.as_vllm.instance(engine, requests, cost, prefetch=prefetch, log=log)

    def ranks(self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, log: bool = False) -> list[Any]:
        """The data-parallel ranks of one worker."""
        from ..core.vllm_lockstep import DynamoLockstep

        return self.as_vllm.ranks(engines, requests, cost, log=log, group=DynamoLockstep)
