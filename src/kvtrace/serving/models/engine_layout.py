"""The cache groups that an engine makes of a model: its layers by kind, and the engine's own rules.

cache/engines/cache_groups.py has these rules. The prefill kernel of states that vLLM takes depends on the
GPU; it is that of an H100 unless another GPU is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ...cache.engines import EngineName
from ...cache.engines.cache_groups import KERNEL_BLOCK, sglang_layout, vllm_layout
from ...cache.layout import STEP_TOKENS, CacheLayout, LayerKind
from ..deployment import Deployment
from .config import Fields, all_layers, read_config
from .layers import layer_kinds, rank_layers

FULL = ("full", "latent")
WORD_OF = {"full": ("full", "both"), "latent": ("full", "both"), "state": ("state", "both")}  # kind -> its words
KERNELS = {  # field of a mechanism of states -> vLLM's prefill kernel on Hopper GPUs and later
    "linear_attn_config": "flashkda", "linear_num_heads": "flashkda", "linear_num_key_heads": "flashinfer",
    "mamba_num_heads": "mamba2", "mamba_n_heads": "mamba2",
}  # fmt: skip
BEFORE_HOPPER = ("a100", "a40", "a10", "l40", "l4", "rtx-4090", "rtx-3090")  # GPUs without these, but for Mamba-2
FULL_IN_SGLANG = ("gemma2", "gemma3")  # model types whose windows keep all tokens in SGLang


def rank_layout(deployment: Deployment) -> CacheLayout:
    """The cache groups that the engine of a deployment makes on one GPU, with the bytes of a block; of any model.

    Raises:
        UsageError: The engine has no cache groups here, or refuses the deployment.
        InputError: A field of the config is missing or wrong, or a kind of layer is not modelled.

    >>> layout = rank_layout(Deployment("deepseek-v3", tensor_parallel_size=8))
    >>> [(group.kind, group.layers, group.block_size) for group in layout.groups], layout.block_bytes
    ([('full', 61, 16)], 1124352)
    """
    if deployment.engine not in LAYOUTS:
        raise UsageError(f"Engine {deployment.engine} models full attention only. Try {' or '.join(LAYOUTS)}.")
    fields, kinds = read_config(deployment.model), rank_layers(deployment)
    layout = LAYOUTS[deployment.engine](
        fields, kinds, deployment.block_size, deployment.retention_interval, deployment.gpu
    )
    if layout is None:
        raise UsageError(f"{fields.name}: rank_layout does not model this model in {deployment.engine} yet.")
    return replace(layout, step_tokens=deployment.max_num_batched_tokens or STEP_TOKENS)


def cache_layout(
    model: Mapping[str, Any] | str | Path,
    engine: EngineName = "vllm",
    *,
    block_size: int | None = None,
    kv_dtype: str | None = None,
    retention_interval: int | None = 0,
    step_tokens: int = STEP_TOKENS,
    gpu: str | None = None,
) -> CacheLayout | None:
    """The cache groups that an engine makes of a model; None if it keeps all tokens of all layers.

    Args:
        model: A name that `kvtrace models` lists, the path of a config.json, or its fields.
        engine: "vllm" or "sglang".
        block_size: Tokens of a block that is asked of the engine; None is its default. A model with states may get
            larger ones. Trace blocks must divide them: give the trace's block size, or a multiple of it.
        kv_dtype: Of keys and values; by default that of the weights.
        retention_interval: Tokens between the checkpoints that vLLM retains: 0, a number, or None for all.
        step_tokens: The largest chunk of a prompt.
        gpu: A name of a GPU; by default an H100.

    Raises:
        UsageError: The engine has no cache groups here, or refuses the model, the block size or the interval.
        InputError: A field of the config is missing or wrong, or a kind of layer is not modelled.

    >>> layout = cache_layout("gpt-oss-20b", block_size=512)
    >>> [(group.kind, group.layers, group.window) for group in layout.groups], layout.tokens_per_block
    ([('window', 12, 128), ('full', 12, 0)], 256.0)
    >>> cache_layout("llama-3.1-8b") is None
    True
    """
    if engine not in LAYOUTS:
        raise UsageError(f"Engine {engine} models full attention only. Try {' or '.join(LAYOUTS)}.")
    fields, kinds = read_config(model), layer_kinds(model, kv_dtype)
    if all(kind.kind in FULL and kind.tokens_per_entry == 1 for kind in kinds):
        return None
    if any(kind.tokens_per_entry != 1 or (kind.indexer and len({other.kind for other in kinds}) > 1) for kind in kinds):
        raise UsageError(
            f"{fields.name}: the rules of {engine} for compressed layers, and for sparse ones beside others, are not "
            "modelled. Use --engine reference, which counts all layers as full attention."
        )
    layout = LAYOUTS[engine](fields, kinds, block_size, retention_interval, gpu)
    return None if layout is None or layout.is_full else replace(layout, step_tokens=step_tokens)


def layouts_for(
    model: Mapping[str, Any] | str | Path | None, engines: Iterable[EngineName], trace_block_size: int, **options: Any
) -> dict[str, CacheLayout]:
    """Engine -> its cache groups for a model, for those of the engines that have groups; blocks as long as the trace's.

    >>> sorted(layouts_for("gpt-oss-20b", ["reference", "vllm"], 512))
    ['vllm']
    """
    if model is None:
        return {}
    size = options.pop("block_size", None)
    layouts = {
        engine: cache_layout(model, engine, block_size=size or _whole_blocks(engine, trace_block_size), **options)
        for engine in dict.fromkeys(engines)
        if engine in LAYOUTS
    }
    return {engine: layout for engine, layout in layouts.items() if layout is not None}


def has_groups(model: Mapping[str, Any] | str | Path) -> bool:
    """Whether some layers of a model keep a window, a chunk or a state.

    >>> has_groups("gpt-oss-20b"), has_groups("llama-3.1-8b")
    (True, False)
    """
    return any(kind.kind not in FULL for kind in layer_kinds(model))


def counted_as_full(model: Mapping[str, Any] | str | Path | None, engines: Iterable[str]) -> str | None:
    """A sentence on engines that count a hybrid model as full attention; None if there are none.

    >>> counted_as_full("gpt-oss-20b", ["reference", "vllm"])
    'Engine reference counts all layers of this model as full attention; vllm and sglang have its windows and states.'
    """
    plain = [engine for engine in dict.fromkeys(engines) if engine not in LAYOUTS]
    if model is None or not plain or not has_groups(model):
        return None
    return (
        f"Engine {', '.join(plain)} counts all layers of this model as full attention; {' and '.join(LAYOUTS)} have "
        "its windows and states."
    )


def _whole_blocks(engine: str, trace_block_size: int) -> int:
    """The trace's block size, or the smallest multiple that the engine takes."""
    return lcm(trace_block_size, KERNEL_BLOCK) if engine == "vllm" else trace_block_size


def _in_vllm(fields: Fields, kinds: tuple[LayerKind, ...], block_size, retention_interval, gpu) -> CacheLayout:
    kernel = next((KERNELS[field] for field in KERNELS if field in fields), "split")
    if gpu is not None and kernel != "mamba2" and gpu.lower().startswith(BEFORE_HOPPER):
        kernel = "split"
    if str(fields.values.get("model_type", "")).startswith("cohere2"):  # vLLM's class adds one token
        kinds = tuple(replace(kind, window=kind.window + (kind.kind == "window")) for kind in kinds)
    return vllm_layout(
        _in_order(fields, kinds), block_size=block_size, retention_interval=retention_interval, state_kernel=kernel
    )


def _in_sglang(fields: Fields, kinds: tuple[LayerKind, ...], block_size, retention_interval, gpu) -> CacheLayout | None:
    if retention_interval != 0:
        raise UsageError("SGLang has no retention interval. Leave it out.")
    if str(fields.values.get("model_type", "")).startswith(FULL_IN_SGLANG):
        return None
    return sglang_layout(kinds, block_size or 1)


def _in_order(fields: Fields, kinds: tuple[LayerKind, ...]) -> list[LayerKind]:
    """The kinds in the order of their first layers, as vLLM finds them."""
    if "compress_ratios" in fields:
        return list(kinds)
    words = all_layers(fields)

    def first(kind: LayerKind) -> int:
        own = WORD_OF.get(kind.kind, (kind.kind,))
        return next((number for number, word in enumerate(words) if word in own), len(words))

    return sorted(kinds, key=first)


LAYOUTS: dict[str, Callable[..., CacheLayout | None]] = {"vllm": _in_vllm, "sglang": _in_sglang}
