"""Terms of a step's cost that follow from a model's shape: its routed experts, and what several GPUs exchange."""

from __future__ import annotations

from dataclasses import replace

from .hardware.links import ACTIVATION_BYTES, ALL_REDUCES, Link
from .hardware.models import ModelShape
from .simulation import StepCost


def with_experts(cost: StepCost, model: ModelShape) -> StepCost:
    """The cost with the routed experts as terms of their own; the same cost if the model has none.

    Args:
        cost: `token_s` for the products of all layers, `step_s` for the weights of the layers and the head.
        model: Its shape.

    >>> from .hardware import model_shape
    >>> cost = with_experts(StepCost(token_s=1e-5, step_s=0.04), model_shape("qwen3-30b-a3b"))
    >>> round(cost.token_s + cost.expert_token_s, 9), round(cost.step_s + cost.expert_step_s, 9), cost.expert_share
    (1e-05, 0.04, 0.0625)
    """
    if not model.experts or cost.expert_share:
        return cost
    computed = model.expert_share * model.expert_parameters / model.matrix_parameters
    read = model.expert_bytes / (model.matrix_bytes + model.head_bytes)
    return replace(
        cost, token_s=(1 - computed) * cost.token_s, expert_token_s=computed * cost.token_s,
        step_s=(1 - read) * cost.step_s, expert_step_s=read * cost.step_s, expert_share=model.expert_share,
    )  # fmt: skip


def without_experts(cost: StepCost) -> StepCost:
    """The cost with routed experts as a part of `token_s` and `step_s`, as if each step read all of them.

    >>> without_experts(StepCost(token_s=1.0, expert_token_s=2.0, step_s=3.0, expert_step_s=4.0, expert_share=0.5))
    ... # doctest: +ELLIPSIS
    StepCost(token_s=3.0, pair_s=0.0, step_s=7.0, ... expert_token_s=0.0, expert_step_s=0.0, expert_share=0.0)
    """
    return replace(
        cost, token_s=cost.token_s + cost.expert_token_s, step_s=cost.step_s + cost.expert_step_s, expert_token_s=0.0,
        expert_step_s=0.0, expert_share=0.0,
    )  # fmt: skip


def with_exchange(cost: StepCost, model: ModelShape, gpus: int, link: Link) -> StepCost:
    """The cost with the all-reduces of tensor parallelism, two a layer, which overlap with nothing.

    Args:
        cost: That of one of the GPUs, for its share of the work.
        model: The shape of the model.
        gpus: The GPUs of an instance.
        link: What connects them.

    >>> from .hardware import model_shape
    >>> with_exchange(StepCost(1e-5), model_shape("llama-3.1-8b"), 2, Link(1e9, 1e-5)).exchange_s == 64 * 8192 / 1e9
    True
    """
    times = ALL_REDUCES * model.layers
    latency_s = link.all_reduce_s(0, gpus)
    per_token_s = link.all_reduce_s(model.hidden * ACTIVATION_BYTES, gpus) - latency_s
    return replace(
        cost, overhead_s=cost.overhead_s + times * latency_s, exchange_s=cost.exchange_s + times * per_token_s
    )
