"""What vLLM sets aside before it sizes its cache: its profile rule, with what each version of it changed.

    available = total * gpu_memory_utilization - weights - activations - graphs - libraries

`activations` is the peak of one run with the most tokens of a step and the most requests, which is arithmetic: what is
alive in an MLP, in the experts' workspace, or in the sampler (v1/worker/gpu_worker.py, gpu_model_runner.profile_run).
`graphs` and `libraries` are measured by vLLM on the GPU: they are constants here, from public start-up logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ..._base.errors import UsageError
from ..models.config import Fields, read_config
from ..models.engine_layout import has_groups
from ..models.mlps import dense_width, expert_count, expert_width, experts_per_token, mlp_kinds, shared_width
from .gpus import Gpu, gpu

if TYPE_CHECKING:
    from ..deployment import Deployment

MIB, GIB = 1 << 20, 1 << 30
MODELLED = "0.33.0"  # the version that an unstated one is taken for
FLOAT, HALF = 4, 2  # bytes
CUBLAS_BYTES = 32 * MIB  # its workspace on Hopper
PROCESSORS = 132  # programs of the top-k and top-p kernel, with a row of the vocabulary each: those of an H100
FAST_LINK = 100e9  # bytes/s of an all-reduce from which GPUs are linked by NVLink or xGMI, not by PCIe
LARGE, HUGE = 70 * GIB, 160 * GIB  # memory from which vLLM takes larger steps by default
GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))  # tokens of CUDA graphs


@dataclass(frozen=True)
class ProfileRule:
    """What one version of vLLM reserves."""

    utilization: float = 0.9  # gpu_memory_utilization
    state_copies: int = 3  # hidden states alive beside an MLP
    logit_bytes: int = 0  # alive in the sampler, per logit of each request; 0 = the profile does not sample
    keeps_top_k_rows: bool = False  # a kernel for top-k and top-p keeps a row of the vocabulary per processor
    keeps_workspace: bool = False  # the workspace of experts stays allocated
    large_requests: int = 256  # requests at once on GPUs with much memory
    whole_prompts: bool = False  # a step holds a whole context of up to 32,768 tokens
    library_bytes: float = 0.13 * GIB
    linked_library_bytes: float = 0.75 * GIB  # of tensor parallelism over NVLink: buffers of all-reduces
    pcie_library_bytes: float = 0.25 * GIB  # over PCIe
    graph_bytes: float = 0.0  # deducted for each CUDA graph
    logs_concurrency: bool = False  # the logged tokens are the greatest concurrency times max_model_len


CHANGES: tuple[tuple[tuple[int, int], dict[str, Any]], ...] = (
    ((0, 0), {"whole_prompts": True, "library_bytes": 0.35 * GIB}),
    # V1: 38 bytes by PyTorch's sort (Qwen3-14B: 5.64 GiB on an H100 in 0.15 and 0.16)
    # libraries: H200, TP 2, 0.11: 1.38 GiB; H100, TP 4, 0.10: 1.84 GiB; L40S, TP 4, 0.10: 0.21 GiB
    ((0, 8), {"whole_prompts": False, "state_copies": 4, "library_bytes": 0.13 * GIB, "logit_bytes": 38,
              "large_requests": 1024, "linked_library_bytes": 1.6 * GIB}),
    ((0, 15), {"keeps_workspace": True}),
    ((0, 17), {"logit_bytes": 14, "keeps_top_k_rows": True}),  # Qwen3-14B: 2.23 GiB
    # H100, 0.19: 0.24 to 0.27 GiB on one GPU, 2.07 on two, 2.13 on four
    ((0, 18), {"library_bytes": 0.25 * GIB, "linked_library_bytes": 2.1 * GIB, "pcie_library_bytes": 0.4 * GIB}),
    ((0, 20), {"utilization": 0.92, "graph_bytes": 6 * MIB}),  # pull request 38284
    ((0, 21), {"logs_concurrency": True}),
)  # fmt: skip
# of model runner V2, which plain models have from 0.26 on, and all from 0.33 on: an H100 with Llama-3.1-8B has 1.1 GiB
# of activations in 0.26, and deducts no graphs; later versions measure them
SECOND_RUNNER: tuple[tuple[tuple[int, int], dict[str, Any]], ...] = (
    ((0, 26), {"state_copies": 7, "logit_bytes": 28, "keeps_top_k_rows": False, "graph_bytes": 0.0}),
    ((0, 27), {"logit_bytes": 6}),  # Qwen2.5-0.5B: 1.06 GiB in 0.26, 0.25 GiB in 0.28; Qwen3-0.6B: 0.26 GiB in 0.27
    ((0, 30), {"graph_bytes": 2.5 * MIB}),
    ((0, 33), {"logit_bytes": 10, "keeps_top_k_rows": True}),  # a second pass has the logits in 32 bits
)
ALL_IN_SECOND = (0, 33)
OVERLAPS_SINCE = (0, 27)  # windows keep the tokens of two steps from here on


def version_of(text: str | None) -> tuple[int, int]:
    """Major and minor number of a version; of the modelled one for None, a name, or a build without a tag (0.1.dev).

    >>> version_of("v0.20.1rc1.dev16"), version_of(None), version_of("nightly"), version_of("0.1.dev20051")
    ((0, 20), (0, 33), (0, 33), (0, 33))
    """
    numbers = re.match(r"v?(?!0\.1\.dev)(\d+)\.(\d+)", text or "") or re.match(r"(\d+)\.(\d+)", MODELLED)
    assert numbers is not None
    return int(numbers[1]), int(numbers[2])


@cache
def version_rule(version: tuple[int, int], second_runner: bool = False) -> ProfileRule:
    """The rule of a version of vLLM, with its model runner V1 or V2.

    >>> version_rule((0, 19)).logit_bytes, version_rule((0, 16)).logit_bytes, version_rule((0, 20)).utilization
    (14, 38, 0.92)
    """
    rule = ProfileRule()
    for since, changes in CHANGES + (SECOND_RUNNER if second_runner else ()):
        if since <= version:
            rule = replace(rule, **changes)
    return rule


def profile_rule(deployment: Deployment) -> ProfileRule:
    """The rule of a deployment's version, for its model."""
    version = version_of(deployment.engine_version)
    is_plain = deployment.speculative is None and not (deployment.model is not None and has_groups(deployment.model))
    return version_rule(version, version >= ALL_IN_SECOND or is_plain)


def utilization(deployment: Deployment) -> float:
    """The share of a GPU's memory that vLLM takes: as asked, else its version's; 0.9 where no version is stated."""
    asked = deployment.gpu_memory_utilization
    if asked is None:
        return 0.9 if deployment.engine_version is None else profile_rule(deployment).utilization
    if not 0 < asked <= 1:
        raise UsageError("--gpu-memory-utilization must be above 0, and at most 1.")
    return asked


def step_limits(deployment: Deployment, device: Gpu | None) -> tuple[int, int]:
    """The most tokens of a step, and the most requests at once: as asked, else what a server takes on this GPU.

    >>> from kvtrace.serving.deployment import Deployment
    >>> from kvtrace.serving.hardware import gpu
    >>> step_limits(Deployment("llama-3.1-8b"), gpu("h100")), step_limits(Deployment("llama-3.1-8b"), gpu("l40s"))
    ((8192, 1024), (2048, 256))
    """
    rule = profile_rule(deployment)
    memory = device.memory if device else LARGE
    is_large = memory >= LARGE and not (device and device.name.startswith(("a100", "gb10")))
    requests = deployment.max_num_seqs or (rule.large_requests if is_large else 256)
    tokens = deployment.max_num_batched_tokens
    if tokens is None and rule.whole_prompts:
        tokens = _whole_prompt(deployment)
    if tokens is None:
        tokens = max((16384 if memory >= HUGE else 8192) if is_large else 2048, deployment.max_num_seqs or 0)
    return tokens, min(requests, tokens)


def _whole_prompt(deployment: Deployment) -> int:
    """The tokens of a step that holds a whole context, or a chunk of a long one."""
    longest = longest_context(deployment)
    if longest is None:
        raise UsageError(f"A step of vLLM {deployment.engine_version} holds a whole context. Give --max-model-len.")
    return max(longest, 2048) if longest <= 32768 else 2048


def longest_context(deployment: Deployment) -> int | None:
    """Tokens of the longest context: as asked, else the model's; None where neither is stated."""
    if deployment.max_model_len is not None:
        return deployment.max_model_len
    fields = _fields(deployment)
    return fields.whole("max_position_embeddings") if "max_position_embeddings" in fields else None


def tokens_in_flight(deployment: Deployment) -> int:
    """Tokens that are scheduled but not settled, which a window keeps: those of the steps that overlap."""
    steps, _ = step_limits(deployment, None if deployment.gpu is None else gpu(deployment.gpu))
    stages, version = deployment.pipeline_parallel_size, version_of(deployment.engine_version)
    if version < OVERLAPS_SINCE:
        return steps * stages
    return steps * (stages + 1 if version >= ALL_IN_SECOND or stages == 1 else stages)


def saves_states(deployment: Deployment) -> bool:
    """Whether the version has a block for the state that a prefill saves on its way, where the kernel can."""
    return version_of(deployment.engine_version) >= ALL_IN_SECOND


def activation_bytes(deployment: Deployment, device: Gpu | None) -> int:
    """The peak of one profile run on each GPU.

    A run holds the hidden states of all its tokens, then either an MLP or what the sampler computes of each request's
    logits; logits are gathered, so tensor parallelism does not divide them.

    >>> from kvtrace.serving.deployment import Deployment
    >>> from kvtrace.serving.hardware import gpu
    >>> h100 = gpu("h100")  # logged: 1.89 GiB
    >>> round(activation_bytes(Deployment("llama-3.1-8b", engine_version="0.19.0"), h100) / GIB, 2)
    1.88
    """
    fields, rule = _fields(deployment), profile_rule(deployment)
    tokens, requests = step_limits(deployment, device)
    hidden, vocabulary = fields.whole("hidden_size"), fields.whole("vocab_size")
    states = HALF * tokens * hidden
    workspace, width = _expert_bytes(deployment, fields, tokens), _mlp_width(deployment, fields)
    layer = rule.state_copies * states + 3 * HALF * tokens * width
    rows = FLOAT * PROCESSORS * vocabulary if rule.keeps_top_k_rows else 0
    sampler = rule.logit_bytes * requests * vocabulary + rows + states + 2 * HALF * requests * hidden
    seen = states if "vision_config" in fields else 0  # what the encoder made of the images of a step
    if rule.keeps_workspace:
        return workspace + max(layer, sampler) + CUBLAS_BYTES + seen
    return max(layer + workspace, sampler) + CUBLAS_BYTES + seen


def _mlp_width(deployment: Deployment, fields: Fields) -> int:
    """Values of the widest MLP of one GPU, without routed experts."""
    kinds = mlp_kinds(fields, fields.whole("num_hidden_layers", greatest=10_000))
    widest = max((dense_width(fields) for kind in set(kinds) if kind in ("dense", "both")), default=0)
    shared = shared_width(fields) if expert_count(fields) else 0
    return max(widest, shared) // deployment.tensor_parallel_size


def _expert_bytes(deployment: Deployment, fields: Fields, tokens: int) -> int:
    """The two buffers of fused experts: rows of each token and expert, as wide as the hidden state or the products."""
    if not expert_count(fields) or fields.values.get("model_type") == "gpt_oss":  # which has kernels of its own
        return 0
    hidden, width = fields.whole("hidden_size"), expert_width(fields)
    if not deployment.enable_expert_parallel:
        width //= deployment.tensor_parallel_size
    return HALF * tokens * experts_per_token(fields) * (max(width, hidden) + max(2 * width, hidden))


def graph_bytes(deployment: Deployment, device: Gpu | None) -> int:
    """What vLLM sets aside for CUDA graphs: its estimate, from version 0.20 on."""
    each = profile_rule(deployment).graph_bytes
    if deployment.enforce_eager or not each:
        return 0
    _, requests = step_limits(deployment, device)
    largest = min(2 * requests, GRAPH_SIZES[-1])
    mixed = sum(size <= largest for size in GRAPH_SIZES)
    alone = sum(size <= min(requests, largest) for size in GRAPH_SIZES)
    first = MIXED_GRAPHS_BYTES if has_groups(deployment.model or {}) else FIRST_GRAPHS_BYTES
    return first + round((mixed + alone) * each)


FIRST_GRAPHS_BYTES = 100 * MIB  # of the largest CUDA graphs, which share their memory with the others
MIXED_GRAPHS_BYTES = 350 * MIB  # likewise, of models with windows or states


def library_bytes(deployment: Deployment, device: Gpu | None) -> int:
    """What libraries allocate beside PyTorch: the context of CUDA, and buffers of NCCL and of other all-reduces."""
    rule = profile_rule(deployment)
    if deployment.tensor_parallel_size == 1:
        return round(rule.library_bytes)
    is_linked = device is None or device.link.bytes_per_s >= FAST_LINK
    return round(rule.linked_library_bytes if is_linked else rule.pcie_library_bytes)


def _fields(deployment: Deployment) -> Fields:
    if deployment.model is None:
        raise UsageError("The room for KV needs a model. Give --model.")
    model: Mapping[str, Any] | Any = deployment.model
    return read_config(model)
