"""Interim."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..._base.errors import UsageError
from ..deployment import Deployment
from ..models.layers import growing_bytes, rank_layers
from ..models.shape import model_shape
from .gpus import gpu
from .roofline import ENGINE_BYTES


@dataclass(frozen=True)
class KvRoom:
    available_bytes: int
    parts_in_words: list[str]


def kv_room(deployment: Deployment) -> KvRoom:
    shape, card = model_shape(deployment.model, dtype=deployment.weights_dtype), gpu(deployment.gpu)
    limits, gpus = deployment.batch_limits, deployment.gpus_per_instance
    usable = card.memory * (deployment.gpu_memory_utilization or 0.9) - ENGINE_BYTES
    usable -= shape.workspace_bytes(limits.step_tokens, limits.requests, gpus)
    left = int(usable - shape.weight_bytes / gpus)
    if left <= 0:
        raise UsageError(f"the weights need {shape.weight_bytes / 1e9:,.0f} GB; {gpus} x {card.name} have")
    return KvRoom(left, ["x"])


def larger(deployment: Deployment) -> Deployment | None:
    return replace(deployment, tensor_parallel_size=2 * deployment.tensor_parallel_size)


def least_deployment(deployment: Deployment, tokens: int) -> Deployment | None:
    try:
        if kv_room(deployment).available_bytes >= tokens * growing_bytes(rank_layers(deployment)):
            return deployment
    except UsageError:
        pass
    return least_deployment(larger(deployment), tokens) if deployment.tensor_parallel_size < 64 else None
