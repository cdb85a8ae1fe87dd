"""The cache groups that an engine makes on one GPU of a deployment: the model's layers by kind, and the engine's rules.

cache/engines/cache_groups.py has these rules. The kernels that vLLM takes depend on the GPU; they are those of an H100
unless another GPU is named (kernels.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ...cache.engines import EngineName, find
from ...cache.engines.cache_groups import KERNEL_BLOCK, sglang_layout, vllm_layout
from ...cache.engines.packed_groups import packed_layout
from ...cache.layout import STEP_TOKENS, CacheLayout, LayerKind
from ..deployment import Deployment
from .config import Fields, all_layers
from .kernels import attention_block, state_kernel
from .layers import layer_kinds, rank_layers, stage_layers
from .shares import KV_DTYPES, config_of, kv_format

FULL = ("full", "latent")
WORD_OF = {"full": ("full", "both"), "latent": ("full", "both"), "state": ("state", "both")}  # kind -> its words
FULL_IN_SGLANG = ("gemma2", "gemma3")  # model types whose windows keep all tokens in SGLang
SPARSE_PAGE = 64  # tokens of a page of SGLang's with an indexer
LAYOUTS = tuple(KV_DTYPES)  # engines


def rank_layout(deployment: Deployment) -> CacheLayout:
    """The cache groups that the engine of a deployment makes on one GPU, with the bytes of a block; of any model.

    Raises:
        UsageError: The engine has no cache groups here, or refuses the deployment.
        InputError: A field of the config is missing or wrong, or a kind of layer is not modelled.

    >>> layout = rank_layout(Deployment("deepseek-v3", tensor_parallel_size=8))
    >>> [(group.kind, group.layers, group.block_size) for group in layout.groups], layout.block_bytes
    ([('full', 61, 16)], 1124352)
    """
    find(deployment.engine)
    if deployment.engine not in LAYOUTS:
        raise UsageError(f"Engine {deployment.engine} models full attention only. Try {' or '.join(LAYOUTS)}.")
    fields = config_of(deployment)
    layout = (_in_vllm if deployment.engine == "vllm" else _in_sglang)(fields, deployment)
    return replace(layout, step_tokens=deployment.max_num_batched_tokens or STEP_TOKENS)


def cache_layout(
    model: Deployment | Mapping[str, Any] | str | Path,
    engine: EngineName = "vllm",
    *,
    block_size: int | None = None,
    kv_dtype: str | None = None,
    retention_interval: int | None = 0,
    step_tokens: int = STEP_TOKENS,
    gpu: str | None = None,
) -> CacheLayout | None:
    """The cache groups that an engine makes of a model on one GPU; None if it keeps all tokens of all layers.

    Args:
        model: A Deployment, with its own engine and options but for a block size that is given here; or a name that
            `kvtrace models` lists, the path of a config.json, or its fields, on one GPU.
        engine: "vllm" or "sglang".
        block_size: Tokens of a block that is asked of the engine; None is its default. A model with states may get
            larger ones. Trace blocks must divide them: give the trace's block size, or a multiple of it.
        kv_dtype: Of keys and values, as the engine names it (--kv-cache-dtype); by default the model's.
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
    if isinstance(model, Deployment):
        model = replace(model, block_size=block_size or model.block_size)
    else:
        model = Deployment(
            model, engine, block_size=block_size, kv_cache_dtype=kv_dtype or "auto", gpu=gpu,
            retention_interval=retention_interval, max_num_batched_tokens=step_tokens,
        )  # fmt: skip
    kinds = rank_layers(model) if model.engine in LAYOUTS else ()
    if any(kind.tokens_per_entry != 1 or (kind.indexer and len({other.kind for other in kinds}) > 1) for kind in kinds):
        raise UsageError(
            f"{config_of(model).name}: the rules of {model.engine} for compressed layers, and for sparse ones "
            "beside others, are not modelled. Use --engine reference, which counts all layers as full attention."
        )
    if kinds and all(kind.kind in FULL for kind in kinds):
        return None
    layout = rank_layout(model)
    return None if layout.is_full else layout


def layouts_for(
    model: Deployment | Mapping[str, Any] | str | Path | None,
    engines: Iterable[EngineName],
    trace_block_size: int,
    **options: Any,
) -> dict[str, CacheLayout]:
    """Engine -> its cache groups for a model, for those of the engines that have groups; blocks as long as the trace's.

    A Deployment gives its own block size, if it has one, and the options.

    >>> sorted(layouts_for("gpt-oss-20b", ["reference", "vllm"], 512))
    ['vllm']
    """
    if model is None:
        return {}
    size = model.block_size if isinstance(model, Deployment) else options.pop("block_size", None)
    layouts = {}
    for engine in dict.fromkeys(engines):
        if engine in LAYOUTS:
            block = size or _whole_blocks(engine, trace_block_size)
            deployed = replace(model, engine=engine) if isinstance(model, Deployment) else model
            layouts[engine] = cache_layout(deployed, engine, block_size=block, **options)
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


def _in_vllm(fields: Fields, deployment: Deployment) -> CacheLayout:
    if "compress_ratios" in fields:
        if deployment.retention_interval or not deployment.hybrid:
            raise UsageError(f"{fields.name}: vLLM's options for windows are not modelled for compressed attention.")
        shards = deployment.decode_context_parallel_size
        return packed_layout(stage_layers(deployment), block_size=deployment.block_size, context_shards=shards)
    stages = [_in_order(fields, kinds) for kinds in stage_layers(deployment)]
    layers = [kind for stage in stages for kind in stage]
    mixed = any(kind.indexer for kind in layers) and any(kind.kind not in FULL for kind in layers)
    if mixed or fields.values.get("use_sconv"):
        kept = "an indexer beside windows or states" if mixed else "convolutions of keys and values"
        raise UsageError(f"{fields.name}: vLLM's blocks for {kept} are not modelled.")
    if str(fields.values.get("model_type", "")).startswith("cohere2"):  # vLLM's class adds one token
        stages = [[replace(kind, window=kind.window + (kind.kind == "window")) for kind in kinds] for kinds in stages]
    bits, _ = kv_format(fields, deployment)
    fp8 = bits == 8 and deployment.kv_cache_dtype != "fp8_e5m2"  # which has other kernels
    return vllm_layout(
        stages[0],
        block_size=deployment.block_size,
        retention_interval=deployment.retention_interval,
        state_kernel=state_kernel(fields, deployment.gpu_name),
        hybrid=deployment.hybrid,
        kernel_block=attention_block(fields, stages[0], deployment.gpu_name, fp8=fp8),
        context_shards=deployment.decode_context_parallel_size,
        later_stages=stages[1:],
    )


def _in_sglang(fields: Fields, deployment: Deployment) -> CacheLayout:
    if deployment.retention_interval != 0:
        raise UsageError("SGLang has no retention interval. Leave it out.")
    kinds = rank_layers(deployment)
    if str(fields.values.get("model_type", "")).startswith(FULL_IN_SGLANG):
        kinds = tuple(replace(kind, kind="full", window=0) if kind.kind == "window" else kind for kind in kinds)
    sparse = any(kind.indexer for kind in kinds)
    return sglang_layout(kinds, deployment.block_size or (SPARSE_PAGE if sparse else 1))


def _in_order(fields: Fields, kinds: tuple[LayerKind, ...]) -> list[LayerKind]:
    """The kinds in the order of their first layers, as vLLM finds them."""
    words = all_layers(fields)

    def first(kind: LayerKind) -> int:
        own = WORD_OF.get(kind.kind, (kind.kind,))
        return next((number for number, word in enumerate(words) if word in own), len(words))

    return sorted(kinds, key=first)
