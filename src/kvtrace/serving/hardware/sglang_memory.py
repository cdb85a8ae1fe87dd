"""What SGLang 0.5.23 leaves beside weights and cache: its static share, and what it measures after CUDA graphs.

    available = (memory - libraries) * mem_fraction_static - weights [- CUDA graphs]

Models with latent attention reserve activations and graphs by a rule of thumb, in the share. Others size the pool after
the graphs' capture: the share leaves little, and what the capture took is measured; here SGLang's own rule of thumb
stands for it (arg_groups/memory_hook.py, mem_cache/kv_cache_configurator.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._base.errors import UsageError
from ..models.config import read_config

if TYPE_CHECKING:
    from ..deployment import Deployment
    from .gpus import Gpu

MIB, GIB = 1 << 20, 1 << 30
# below this memory, in MiB: tokens of a prefill's chunk, requests of the largest CUDA graph below 4 GPUs, and from 4 on
STEPS = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (1 << 40, 16384, 512, 512),
)
ACTIVATION_MIB = 1.5  # a token of a chunk
FLOOR_MIB, FLOOR_FROM_MIB = 10 * 1024, 60 * 1024  # reserved at least, on GPUs with more memory than this
CAPTURE_MIB = 1536  # reserved where the pool is sized after the capture of CUDA graphs
LATENT_GRAPHS_MIB = 1536
SHARES = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))  # before 0.5: GPUs -> mem_fraction_static


def static_share(deployment: Deployment, gpu: Gpu) -> tuple[float, str]:
    """mem_fraction_static, and where it comes from.

    >>> from kvtrace.serving.deployment import Deployment
    >>> from kvtrace.serving.hardware import gpu
    >>> static_share(Deployment("llama-3.1-8b", "sglang"), gpu("h100"))[0]
    0.979
    """
    asked = deployment.gpu_memory_utilization
    if asked is not None:
        if not 0 < asked < 1:
            raise UsageError("--mem-fraction-static must be above 0, and below 1.")
        return asked, "as stated"
    ranks = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    if _version(deployment) < (0, 5):
        share = next(share for gpus, share in SHARES if deployment.tensor_parallel_size >= gpus)
        return share, "the default before 0.5"
    memory = gpu.memory / MIB
    if sizes_after_capture(deployment):
        reserved: float = CAPTURE_MIB + ranks / 8 * 1024
    else:
        chunk, _ = step_sizes(deployment, gpu)
        reserved = 512 + max(chunk, 2048) * ACTIVATION_MIB + ranks / 8 * 1024 + graphs_mib(deployment, gpu)
        reserved = max(reserved, FLOOR_MIB) if memory > FLOOR_FROM_MIB else reserved
    return round((memory - reserved) / memory, 3), "the default of this GPU"


def sizes_after_capture(deployment: Deployment) -> bool:
    """Whether SGLang sizes the pool after the capture of CUDA graphs: attention without latents, one context rank."""
    fields = read_config(deployment.model or {})
    is_new = _version(deployment) >= (0, 5) and deployment.gpu_memory_utilization is None
    return is_new and "kv_lora_rank" not in fields and deployment.decode_context_parallel_size == 1


def step_sizes(deployment: Deployment, gpu: Gpu) -> tuple[int, int]:
    """Tokens of a prefill's chunk, and requests of the largest CUDA graph."""
    chunk, few, many = next(sizes for below, *sizes in STEPS if gpu.memory / MIB < below)
    requests = few if deployment.tensor_parallel_size < 4 else many
    chunk //= deployment.data_parallel_size if deployment.enable_dp_attention else 1
    return deployment.max_num_batched_tokens or chunk, min(requests, deployment.max_num_seqs or requests)


def graph_bytes(deployment: Deployment, gpu: Gpu) -> int:
    """What CUDA graphs and activations take, where the pool is sized after their capture; else 0."""
    if not sizes_after_capture(deployment):
        return 0
    chunk, _ = step_sizes(deployment, gpu)
    return round((max(chunk, 2048) * ACTIVATION_MIB + graphs_mib(deployment, gpu)) * MIB)


def library_bytes(deployment: Deployment) -> int:
    """What CUDA and NCCL take before the weights are loaded, by public start-up logs of H100s."""
    return round((0.5 if deployment.tensor_parallel_size == 1 else 1.8) * GIB)


def graphs_mib(deployment: Deployment, gpu: Gpu) -> float:
    """What SGLang reserves for CUDA graphs, by its rule of thumb."""
    if deployment.enforce_eager:
        return 0
    chunk, requests = step_sizes(deployment, gpu)
    if "kv_lora_rank" in read_config(deployment.model or {}):
        return 2 * requests + LATENT_GRAPHS_MIB
    return 2 * requests + 8 * len(prefill_sizes(chunk))


def prefill_sizes(most: int) -> list[int]:
    """Tokens of the CUDA graphs of prefills.

    >>> len(prefill_sizes(8192))
    58
    """
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, most + 1, 512))
    return [size for step in steps for size in range(*step) if size <= most]


def _version(deployment: Deployment) -> tuple[int, int]:
    numbers = (deployment.engine_version or "0.5.23").lstrip("v").split(".")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 and all(map(str.isdecimal, numbers[:2])) else (0, 5)
