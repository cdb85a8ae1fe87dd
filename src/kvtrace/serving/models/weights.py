"""The bytes of a model's weights: of the whole model, and of one GPU of a deployment, as vLLM divides them.

Matrices divide by outputs or inputs; heads of keys and values are copied where there are more GPUs than heads; low
ranks of latent attention, indexers and routers are whole on each GPU; a vocabulary is padded to a multiple of 64.
Experts divide over all GPUs of all data-parallel ranks, as parts of each expert or, with expert parallelism, as whole
ones (vllm/model_executor/layers/fused_moe/config.py). Pipeline stages have whole layers.
tests/clients/test_vllm_weights.py builds vLLM's own models without memory and compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..._base.errors import UsageError
from ..deployment import Deployment, Drafter
from .config import Fields, read_config
from .matrices import ModelMatrices, draft_matrices, eagle_matrices, model_matrices
from .mlps import Matrix
from .quantisation import Quantisation, quantisation

ABSORBED = "self_attn.kv_b_proj"  # engines keep a second copy in 16 bits, to absorb it into queries and outputs
VOCABULARY_ROWS = 64  # a vocabulary is padded to a multiple (vllm/model_executor/layers/vocab_parallel_embedding.py)


@dataclass(frozen=True)
class WeightSums:
    """Parameters and bytes of a model by what reads them; fields of ModelShape, which says what they are."""

    layer_parameters: int
    layer_bytes: int
    routed_parameters: int
    routed_bytes: int
    active_routed_parameters: int
    embedding_parameters: int
    embedding_bytes: int
    stored_head_bytes: int
    vision_bytes: int


def weight_sums(matrices: ModelMatrices, rules: Quantisation) -> WeightSums:
    """Parameters and bytes of a whole model."""
    named = [(f"layers.{number}.{part.module}", part) for number, row in enumerate(matrices.layers) for part in row]
    experts = [(name, part) for name, part in named if part.experts]
    rest = [(name, part) for name, part in named if not part.experts]
    whole = Shares()
    ends, head = (*matrices.embeddings, *matrices.head), matrices.head or matrices.embeddings[:1]
    return WeightSums(
        layer_parameters=sum(part.parameters for _, part in rest),
        layer_bytes=_bytes(rest, rules, whole),
        routed_parameters=sum(part.parameters for _, part in experts),
        routed_bytes=_bytes(experts, rules, whole),
        active_routed_parameters=sum(part.active for _, part in experts),
        embedding_parameters=sum(part.parameters for part in ends),
        embedding_bytes=_bytes(((part.module, part) for part in ends), rules, whole),
        stored_head_bytes=_bytes(((part.module, part) for part in head), rules, whole),
        vision_bytes=_bytes(((part.module, part) for part in matrices.vision), rules, whole),
    )


@dataclass(frozen=True)
class Shares:
    """How many GPUs divide a matrix."""

    tensor: int = 1
    experts: int = 1  # GPUs that share the experts of a layer
    whole_experts: bool = False  # each has whole ones
    padding: int = 1  # rows of a vocabulary come in multiples of it
    shared_whole: bool = False  # experts that every token passes are copied (sequence parallelism)

    def part(self, matrix: Matrix, multiple: int = 1) -> tuple[int, int, int]:
        """Copies, outputs and inputs of one GPU's part; parts of an expert are as wide as a multiple."""
        outputs, inputs, tensor = matrix.outputs, matrix.inputs, self.tensor
        if matrix.experts:
            if self.whole_experts:
                return -(-matrix.experts // self.experts), outputs, inputs
            tensor = self.experts
            if matrix.split == "outputs":
                outputs = tensor * -(-outputs // (tensor * multiple)) * multiple
            else:
                inputs = tensor * -(-inputs // (tensor * multiple)) * multiple
        elif self.shared_whole and "shared_expert" in matrix.module:
            tensor = 1
        if matrix.split == "vocabulary":
            outputs = -(-outputs // self.padding) * self.padding
        if matrix.split == "heads":
            outputs = outputs // matrix.heads * max(1, -(-matrix.heads // tensor))
        elif matrix.split in ("outputs", "vocabulary"):
            outputs = -(-outputs // tensor)
        elif matrix.split == "inputs":
            inputs = -(-inputs // tensor)
        return matrix.experts or 1, outputs, inputs


def _bytes(named: Iterable[tuple[str, Matrix]], rules: Quantisation, shares: Shares) -> int:
    """Bytes of one GPU's parts."""
    sizes: dict[Any, int] = {}
    total = 0
    for name, matrix in named:
        storage = None if matrix.bytes_each else rules.storage(name, matrix)
        if (size := sizes.get((matrix, storage))) is None:
            copies, outputs, inputs = shares.part(matrix, rules.expert_multiple)
            plain = outputs * inputs * (matrix.bytes_each or rules.plain_bytes)
            size = sizes[matrix, storage] = copies * (storage.size(outputs, inputs) if storage else plain)
        total += size
    return total


def rank_weight_bytes(deployment: Deployment) -> int:
    """Bytes of the weights on one GPU: of the pipeline stage that has most, with the layers of a drafter.

    Raises:
        UsageError: There is no model, more stages than layers, or a drafter whose weights are not known.
        InputError: A field of the config is missing or wrong, or its matrices are not modelled.

    >>> rank_weight_bytes(Deployment("llama-3.1-8b", tensor_parallel_size=2))
    8029995008
    """
    if deployment.model is None:
        raise UsageError("The weights of a deployment need its model. Give --model.")
    fields = read_config(deployment.model)
    rules, matrices = quantisation(fields, deployment.weights_dtype), model_matrices(fields)
    shares = _shares(deployment)
    stages = stage_layers(len(matrices.layers), deployment.pipeline_parallel_size)
    drafter = _drafter_bytes(fields, deployment.speculative, rules, shares, len(matrices.layers))
    sizes = []
    for number, stage in enumerate(stages):
        parts = [(f"layers.{layer}.{part.module}", part) for layer in stage for part in matrices.layers[layer]]
        parts += [(name, replace(part, is_linear=False)) for name, part in parts if part.module == ABSORBED]
        is_last = number == len(stages) - 1
        ends = [*matrices.embeddings, *matrices.vision] if number == 0 else []
        if is_last:
            ends += matrices.head if number == 0 or matrices.head else matrices.embeddings[:1]
        sizes.append(_bytes([*parts, *((end.module, end) for end in ends)], rules, shares) + is_last * drafter)
    return max(sizes)


def _shares(deployment: Deployment) -> Shares:
    tensor, data = deployment.tensor_parallel_size, deployment.data_parallel_size
    shared = deployment.engine == "vllm" or deployment.enable_dp_attention  # else SGLang's ranks share nothing
    ranks = data if shared else 1
    experts = tensor * ranks * deployment.prefill_context_parallel_size
    whole = deployment.enable_expert_parallel
    return Shares(tensor, experts, whole, VOCABULARY_ROWS, shared_whole=whole and tensor > 1 and ranks > 1)


def stage_layers(layers: int, stages: int) -> list[range]:
    """The layers of each pipeline stage: as many each, and one more from the last stage but one backwards.

    >>> stage_layers(10, 4)
    [range(0, 2), range(2, 5), range(5, 8), range(8, 10)]
    """
    if stages > layers:
        raise UsageError(f"--pipeline-parallel-size must be at most {layers:,}, the layers of the model.")
    more = layers % stages
    sizes = [layers // stages + (stages - 1 - more <= stage < stages - 1) for stage in range(stages)]
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _drafter_bytes(fields: Fields, drafter: Drafter | None, rules: Quantisation, shares: Shares, layers: int) -> int:
    """Bytes of what predicts further tokens; embedding and head are the model's own."""
    if drafter is None:
        return 0
    if drafter.method == "mtp":
        parts = draft_matrices(fields)
        if not parts:
            raise UsageError(f"{fields.name} has no layers that predict further tokens. Leave --speculative out.")
        return _bytes(((f"layers.{layers}.{part.module}", part) for part in parts), rules, shares)
    if drafter.model is None:
        raise UsageError(f"The weights of the {drafter.method} head are not known. Example: {drafter}:config.json.")
    head = read_config(drafter.model)
    return _bytes(((part.module, part) for part in eagle_matrices(head, fields)), quantisation(head), shares)
