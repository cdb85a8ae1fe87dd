"""The time of a step by the roofline of a model and its GPUs."""

from __future__ import annotations

from .hardware.roofline import Roofline
from .simulation import StepCost


def roofline_cost(roofline: Roofline) -> StepCost:
    """Seconds per token and step, of routed experts, and of attention, the head and what GPUs exchange.

    The last ones overlap with nothing.
    """
    return StepCost(
        token_s=roofline.seconds_per_dense_token, step_s=roofline.seconds_per_step,
        request_s=roofline.seconds_per_request,
        overhead_s=roofline.head_s + roofline.step_overhead_s + roofline.exchange_s_per_step,
        attention_pair_s=roofline.seconds_per_pair, attention_read_s=roofline.seconds_per_cached_token,
        exchange_s=roofline.exchange_s_per_token, expert_token_s=roofline.seconds_per_expert_token,
        expert_step_s=roofline.seconds_for_experts, expert_share=roofline.model.expert_share,
        window_read_s=roofline.seconds_per_window_token, window_pair_s=roofline.seconds_per_window_pair,
        window_tokens=roofline.model.window_tokens,
    )  # fmt: skip
