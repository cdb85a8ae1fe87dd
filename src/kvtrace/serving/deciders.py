"""Deciders: whether the decode worker of a request computes its prompt, in place of a prefill worker.

* `max_local_prefill_length`, `max_prefill_queue_size`: Dynamo's disaggregated router up to 0.4 (ai-dynamo/dynamo,
  examples/llm/components/disagg_router.py, `prefill_remote`). A prompt goes to a prefill worker if more tokens of it
  than the first do not hit on the decode worker, and fewer requests than the second wait for a prefill worker. There,
  prefill workers take requests from one queue; here the requests that no prefill worker has begun are counted.
  llm-d's `prefix-based-pd-decider` (llm-d/llm-d-router, pkg/epp/framework/plugins/scheduling/profilehandler/disagg/
  prefix_based_pd_decider.go) has the first rule, with `nonCachedTokens` one larger, and none by queue;
  `always-disagg-pd-decider` is the default here. Its `promptTokens` is not modelled.
* `ConditionalDisagg`: Dynamo's router from 1.4 on (lib/kv-router/src/conditional_disagg.rs,
  lib/llm/src/kv_router/prefill_router/conditional_bypass.rs).

All are read from that code. Dynamo's offline replay (1.6.1) accepts the last ones and sends each prompt to a prefill
worker (driven), so they were not compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from .._base.errors import UsageError, wrong_word
from .._base.options import changed_by_text

POLICIES = ("isl_bounding", "prefill_load", "isl_or_load")


@dataclass(frozen=True)
class ConditionalDisagg:
    """Dynamo's conditional disaggregation, by its names and with its defaults.

    Of a prompt, `eff_isl` tokens do not hit on the decode worker that the router would take. `isl_bounding` keeps it
    there if `eff_isl` is less than `eff_isl_threshold` and less than this share of the prompt. `prefill_load` keeps it
    there if the prefill worker that the router would take has more than `prefill_busy_threshold` times
    `max_num_batched_tokens` tokens to compute, those of requests whose first token has not come. With a
    `decode_busy_threshold`, none stays if the decode worker would then have more than this share of its blocks in
    prompts, where each request counts its own.

    >>> ConditionalDisagg.of("policy=prefill_load,prefill_busy_threshold=1.5").prefill_busy_threshold
    1.5
    """

    policy: str = "isl_bounding"
    eff_isl_threshold: int = 2048  # tokens
    eff_isl_ratio_threshold: float = 0.7
    prefill_busy_threshold: float = inf  # of max_num_batched_tokens
    decode_busy_threshold: float = inf  # of the blocks of a decode worker

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise wrong_word(self.policy, "a policy of --router-conditional-disagg-config", POLICIES)
        if not 0 <= self.eff_isl_ratio_threshold <= 1:
            raise UsageError("eff_isl_ratio_threshold must be from 0 to 1.")
        for name in ("eff_isl_threshold", "prefill_busy_threshold", "decode_busy_threshold"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} must be at least 0.")
        if self.policy != "isl_bounding" and self.prefill_busy_threshold == inf:
            raise UsageError(f"policy={self.policy} needs prefill_busy_threshold. Example: prefill_busy_threshold=1.")

    @classmethod
    def of(cls, text: str) -> ConditionalDisagg:
        """The options of a text, `policy=isl_or_load,prefill_busy_threshold=1`; UsageError if one is not valid."""
        whose, policy = "--router-conditional-disagg-config", "isl_bounding"
        pairs = [pair.strip() for pair in text.split(",")]
        for pair in pairs:
            if pair.startswith("policy="):
                policy = pair.removeprefix("policy=")
        others = ",".join(pair for pair in pairs if not pair.startswith("policy="))
        base = changed_by_text(cls(), others, whose) if others else cls()
        return cls(**{**vars(base), "policy": policy})

    @property
    def terms(self) -> dict[str, Any]:
        """The terms of the kernel: which rules there are, and their thresholds."""
        return vars(self) | {
            "by_length": self.policy != "prefill_load", "by_load": self.policy != "isl_bounding",
        }  # fmt: skip
