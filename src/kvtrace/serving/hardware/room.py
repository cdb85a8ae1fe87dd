"""Room for KV on each GPU of a deployment, as its engine computes it, and the tokens that the engine logs.

    available = what the engine takes - weights - activations - CUDA graphs - libraries
    blocks = available // bytes of a block on one GPU

vllm_memory.py and sglang_memory.py have what each engine sets aside; docs/serving/models.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING

from ..._base.errors import UsageError
from ..._base.results import Described, column
from ...cache.layout import CacheGroup, CacheLayout
from ..models.engine_layout import rank_layout
from ..models.weights import rank_weight_bytes
from ..schedulers import BatchLimits, scheduler_of
from . import sglang_memory, vllm_memory
from .gpus import Gpu, gpu

if TYPE_CHECKING:
    from ..deployment import Deployment

TENSOR_SIZES = (1, 2, 4, 8, 16)  # GPUs that share each layer
STAGES = (2, 4, 8, 16, 32)  # groups of 8 of them, where 16 are too few


@dataclass(frozen=True)
class KvRoom(Described):
    """Memory of each GPU of one data-parallel rank, and what it holds; None = not known.

    >>> from kvtrace.serving.deployment import Deployment
    >>> room = kv_room(Deployment("llama-3.1-8b", gpu="h100", engine_version="0.19.0", gpu_memory_utilization=0.95))
    >>> room.block_bytes, room.block_size
    (2097152, 16)
    """

    gpu_bytes: int | None  # that the driver reports
    usable_bytes: int | None  # that the engine takes
    weight_bytes: int | None
    activation_bytes: int | None
    graph_bytes: int | None  # of CUDA graphs
    library_bytes: int | None
    available_bytes: int | None = field(metadata=column("GB for KV", ".1f", scale=1e-9))
    block_size: int  # tokens; the smallest of the cache groups
    block_bytes: int | None
    token_bytes: float | None  # of a token in all cache groups
    blocks: int | None = field(metadata=column("blocks", ","))
    tokens: int | None = field(metadata=column("tokens", ","))  # that fit in all cache groups
    logged_tokens: int | None  # as the engine's version logs them
    concurrency: float | None  # requests of the longest context at once
    sources: Mapping[str, str] = field(default_factory=dict)  # part -> where it comes from


@dataclass(frozen=True)
class _Memory:
    """What an engine sets aside on each GPU, and why."""

    usable: int
    activations: int
    graphs: int
    libraries: int
    sources: dict[str, str]


def kv_room(deployment: Deployment) -> KvRoom:
    """The room for KV on each GPU of a deployment.

    Args:
        deployment: With a model and a GPU; without a GPU, `kv_cache_memory_bytes` can state the room.

    Raises:
        UsageError: The weights do not fit, or the engine's rule for this deployment is not modelled.
        InputError: A field of the model's config is missing or wrong.

    >>> from kvtrace.serving.deployment import Deployment
    >>> kv_room(Deployment("llama-3.1-8b", kv_cache_memory_bytes=2 << 30)).tokens
    16384
    """
    device = None if deployment.gpu is None else gpu(deployment.gpu)
    layout = rank_layout(deployment)
    if deployment.kv_cache_memory_bytes is not None:
        sources = {"available_bytes": "as stated (--kv-cache-memory-bytes)"}
        return room_in_layout(deployment, layout, deployment.kv_cache_memory_bytes, None, sources)
    if device is None:
        return room_in_layout(deployment, layout, None, None, {"available_bytes": "not known: no GPU"})
    memory = ENGINES[deployment.engine](deployment, device)
    weights = rank_weight_bytes(deployment)
    available = memory.usable - weights - memory.activations - memory.graphs - memory.libraries
    if available <= 0:
        raise UsageError(_too_large(deployment, device, weights, available + weights))
    values = (memory.usable, weights, memory.activations, memory.graphs, memory.libraries)
    return room_in_layout(deployment, layout, available, dict(zip(PARTS, values, strict=True)), memory.sources)


def step_limits(deployment: Deployment) -> BatchLimits:
    """Tokens in a step and requests at once: as asked, else what a server of the engine takes on this GPU.

    >>> from kvtrace.serving.deployment import Deployment
    >>> step_limits(Deployment(gpu="h100")), step_limits(Deployment(engine="sglang", gpu="rtx-4090")).step_tokens
    (BatchLimits(step_tokens=8192, requests=1024), 4096)
    """
    device = None if deployment.gpu is None else gpu(deployment.gpu)
    if deployment.engine == "vllm":
        return BatchLimits(*vllm_memory.step_limits(deployment, device))
    usual = scheduler_of(deployment.engine).limits
    tokens = deployment.max_num_batched_tokens or usual.step_tokens
    if deployment.engine == "sglang" and device is not None:
        tokens, _ = sglang_memory.step_sizes(deployment, device)
    return BatchLimits(tokens, deployment.max_num_seqs or usual.requests)


PARTS = ("usable_bytes", "weight_bytes", "activation_bytes", "graph_bytes", "library_bytes")


def least_gpus(deployment: Deployment, tokens: int = 1) -> Deployment | None:
    """The deployment on the fewest GPUs that holds the weights and the KV of `tokens` tokens.

    Tensor parallelism grows first (1, 2, 4, 8, 16), then pipeline stages of 8 GPUs. None where none of them is enough.

    >>> from kvtrace.serving.deployment import Deployment
    >>> least = least_gpus(Deployment("llama-3.1-70b", gpu="h100"), 100_000)
    >>> least.tensor_parallel_size
    4
    """
    if deployment.gpu is None:
        raise UsageError("The fewest GPUs depend on the GPU. Give --gpu.")
    sizes = [(size, 1) for size in TENSOR_SIZES] + [(8, stages) for stages in STAGES]
    for size, stages in sorted(sizes, key=lambda pair: (pair[0] * pair[1], pair[1])):
        larger = replace(deployment, tensor_parallel_size=size, pipeline_parallel_size=stages)
        if _holds(larger, gpu(deployment.gpu), tokens):
            return larger
    return None


def _holds(deployment: Deployment, device: Gpu, tokens: int) -> bool:
    """Whether the weights and some tokens fit; False where the model cannot be divided like this."""
    with suppress(UsageError):
        layout, memory = rank_layout(deployment), ENGINES[deployment.engine](deployment, device)
        left = memory.usable - rank_weight_bytes(deployment) - memory.activations - memory.graphs - memory.libraries
        return left > 0 and (room_in_layout(deployment, layout, left).tokens or 0) >= tokens
    return False


def _in_vllm(deployment: Deployment, device: Gpu) -> _Memory:
    version = deployment.engine_version
    share = vllm_memory.utilization(deployment)
    said = "as stated" if deployment.gpu_memory_utilization is not None else f"the default of version {version}"
    if deployment.gpu_memory_utilization is None and version is None:
        said = "the default of versions before 0.20, as no version is stated"
    steps, requests = vllm_memory.step_limits(deployment, device)
    graphs = vllm_memory.graph_bytes(deployment, device)
    return _Memory(
        ceil(device.memory * share),
        vllm_memory.activation_bytes(deployment, device),
        graphs,
        vllm_memory.library_bytes(deployment, device),
        {
            "gpu_bytes": f"{device.name}, as its driver reports it",
            "usable_bytes": f"gpu_memory_utilization {share:g}: {said}",
            "weight_bytes": "the parameters of one GPU",
            "activation_bytes": f"the profile run: {steps:,} tokens and {requests:,} requests in a step; without an "
            "encoder's layers, and what other data-parallel ranks send to experts",
            "graph_bytes": "a fit to public logs; large hybrid models need more" if graphs else "not deducted",
            "library_bytes": "a constant by version and links, from public logs",
        },
    )


def _in_sglang(deployment: Deployment, device: Gpu) -> _Memory:
    share, said = sglang_memory.static_share(deployment, device)
    libraries = sglang_memory.library_bytes(deployment)
    return _Memory(
        round((device.memory - libraries) * share),
        0,
        sglang_memory.graph_bytes(deployment, device),
        0,
        {
            "gpu_bytes": f"{device.name}, as its driver reports it",
            "usable_bytes": f"mem_fraction_static {share:g} of what libraries leave: {said}",
            "weight_bytes": "the parameters of one GPU",
            "activation_bytes": "in the share that the engine leaves",
            "graph_bytes": "SGLang's own estimate, where it sizes the pool after their capture",
            "library_bytes": "in usable_bytes",
        },
    )


ENGINES: dict[str, Callable[[Deployment, Gpu], _Memory]] = {"vllm": _in_vllm, "sglang": _in_sglang}


def room_in_layout(
    deployment: Deployment,
    layout: CacheLayout,
    available: int | None,
    parts: Mapping[str, int | None] | None = None,
    sources: Mapping[str, str] | None = None,
) -> KvRoom:
    """The room of a layout in some bytes of each GPU: blocks, the tokens that fit, and those that the engine logs."""
    block_bytes = layout.block_bytes or None
    blocks = available // block_bytes if available is not None and block_bytes else None
    per_block = layout.tokens_per_block
    needed = None if deployment.engine == "sglang" else request_blocks(deployment, layout)
    concurrency = blocks / needed if blocks is not None and needed else None
    device = None if deployment.gpu is None else gpu(deployment.gpu)
    return KvRoom(
        gpu_bytes=None if device is None else round(device.memory),
        **dict(parts or dict.fromkeys(PARTS)),
        available_bytes=available,
        block_size=min(group.block_size for group in layout.groups),
        block_bytes=block_bytes,
        token_bytes=block_bytes / per_block if block_bytes else None,
        blocks=blocks,
        tokens=None if blocks is None else int(blocks * per_block),
        logged_tokens=None if blocks is None else _logged(deployment, layout, blocks, concurrency),
        concurrency=concurrency,
        sources=dict(sources or {}),
    )


def _logged(deployment: Deployment, layout: CacheLayout, blocks: int, concurrency: float | None) -> int | None:
    """The tokens in the engine's log; None where they depend on the longest context, which is not known."""
    if deployment.engine == "sglang":
        return int(blocks * layout.tokens_per_block)
    if not vllm_memory.profile_rule(deployment).logs_concurrency:
        smallest = min(group.block_size for group in layout.groups)
        return blocks // len(layout.groups) * smallest
    longest = vllm_memory.longest_context(deployment)
    if concurrency is not None and longest is not None:
        return int(concurrency * longest)
    return blocks * layout.groups[0].block_size if layout.is_full else None


def request_blocks(deployment: Deployment, layout: CacheLayout) -> int | None:
    """Blocks of a request of the longest context in all groups, by which vLLM divides its blocks; None if not known.

    A window keeps its tokens and those of the steps in flight; a state is read, written and saved.
    """
    longest = vllm_memory.longest_context(deployment)
    if longest is None:
        return None
    flight = 0 if layout.is_full else vllm_memory.tokens_in_flight(deployment)
    return sum(_group_blocks(deployment, layout, group, longest, flight) for group in layout.groups)


def _group_blocks(deployment: Deployment, layout: CacheLayout, group: CacheGroup, longest: int, flight: int) -> int:
    if group.kind == "state":
        drafted = deployment.speculative.tokens if deployment.speculative else 0
        return 2 + drafted + vllm_memory.saves_states(deployment) * (layout.internal_checkpoint_alignment > 0)
    held = longest
    if group.kind != "full":
        held = min(group.window - (group.kind == "window") + flight, longest)
    return -(-held // group.block_size) + (group.kind == "window")


def _too_large(deployment: Deployment, device: Gpu, weights: int, room: int) -> str:
    fits = least_gpus(deployment)
    if fits is None:
        advice = "Use GPUs with more memory."
    else:
        stages = fits.pipeline_parallel_size
        asked = f" --pipeline-parallel-size {stages}" if stages > 1 else ""
        advice = f"Try --tensor-parallel-size {fits.tensor_parallel_size}{asked}."
    return (
        f"the weights need {weights / 1e9:,.0f} GB on each GPU; {device.name} has {max(room, 0) / 1e9:,.0f} GB for "
        f"them. {advice}"
    )
