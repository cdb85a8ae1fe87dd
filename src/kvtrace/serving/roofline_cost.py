"""The time of a step by the roofline of a model and its GPUs."""

from __future__ import annotations

from .hardware.roofline import Roofline
from .simulation import StepCost


def roofline_cost(roofline: Roofline) -> StepCost:
    """Seconds per token and step, of routed experts, and of attention, the head and what GPUs exchange.

    The last ones overlap with nothing. Windows count as full for each token and request, whatever its context.
    """
    return StepCost(
        token_s=roofline.seconds_per_dense_token + roofline.seconds_per_windowed_token,
        request_s=roofline.seconds_per_request, step_s=roofline.seconds_per_step,
        overhead_s=roofline.head_s + roofline.step_overhead_s + roofline.exchange_s_per_step,
        attention_pair_s=roofline.seconds_per_pair, attention_read_s=roofline.seconds_per_cached_token,
        exchange_s=roofline.exchange_s_per_token, expert_token_s=roofline.seconds_per_expert_token,
        expert_step_s=roofline.seconds_for_experts, expert_share=roofline.model.expert_share,
    )  # fmt: skip
