"""The layers of a model by kind, from its config.json: what each keeps of a token, a window or a whole prefix.

Attention keeps keys and values of one token, a latent of both, or an indexer's key. The compressed attention of
DeepSeek V4 has a window of recent tokens, and one entry for every 2, 4 or 128 older ones: `compress_ratios` states for
each layer how many tokens an entry stands for; 0 is a layer with a window alone, and rows beyond the layers are the
draft's. In V4.1 only the layers of `kv_source_layer_ids` keep entries and an indexer's keys.

A state is the inputs that a convolution still needs, and the recurrent state, of one layer and request. Shapes are
vLLM's (model_executor/layers/mamba/mamba_utils.py); tests/clients compares them with its own functions.

KV-cache bytes per token are the sum over the layers that keep something for each token. A layer with a window counts in
full: its bytes of a token while the token is in the window. States do not grow with tokens and are not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..._base.errors import InputError, UsageError
from ...cache.layout import LayerKind
from ..deployment import Deployment
from .config import BYTES, Fields, config_dtype, kv_bits, layer_schedule, numbers, read_config


def is_latent(fields: Fields) -> bool:
    """Whether attention keeps one latent for keys and values (DeepSeek-V2 and later)."""
    return "kv_lora_rank" in fields


def cached_values(fields: Fields, *, is_window: bool = False) -> int:
    """Values of one token in one layer. Layers with windows may have heads of their own (MiMo, Inkling, Dots3).

    >>> cached_values(Fields("config.json", {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}))
    256
    >>> cached_values(Fields("config.json", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}))
    576
    """
    if is_latent(fields):
        own = "swa_" if is_window and "swa_kv_lora_rank" in fields else ""
        return fields.whole(f"{own}kv_lora_rank") + fields.whole(f"{own}qk_rope_head_dim", least=0)
    heads = key_value_heads(fields)
    key = head_size(fields)
    value = fields.whole("v_head_dim", key)
    if is_window:
        heads = fields.whole("swa_num_key_value_heads", heads)
        value = fields.whole("swa_v_head_dim", fields.whole("v_head_dim", fields.whole("swa_head_dim", key)))
        key = fields.whole("swa_head_dim", key)
    elif "global_head_dim" in fields or "num_global_key_value_heads" in fields:  # Gemma 4
        heads = fields.whole("num_global_key_value_heads", heads)
        key = fields.whole("global_head_dim", key)
        value = key
    return heads * (key + value)


def key_value_heads(fields: Fields) -> int:
    """The heads of keys and values, as many as those of queries unless stated."""
    return fields.whole("num_key_value_heads", fields.values.get("num_attention_heads"))


def head_size(fields: Fields) -> int:
    """The values of a key, or of a query's head."""
    stated = fields.values.get("head_dim")
    if not stated:  # some configs have 0
        stated = fields.whole("hidden_size") // fields.whole("num_attention_heads")
    return fields.checked("head_dim", stated)


def indexer_layers(fields: Fields, attention_layers: int) -> int:
    """Layers with an indexer of their own; the others use the choice of an earlier layer.

    GLM-5.2 states `index_topk_freq` and `index_skip_topk_offset`; MiniMax M3 has indexers in its sparse layers alone.
    """
    stated = fields.values.get("layer_types")
    sparse = [stated[name] for name in stated if name == "minimax_m3_sparse"] if isinstance(stated, dict) else []
    if sparse:
        return fields.checked("layer_types", sparse[0])
    if isinstance(stated, list) and "minimax_m3_sparse" in stated:
        return stated.count("minimax_m3_sparse")
    if "sparse_attention_freq" in fields:
        return sum(numbers(fields, fields.values, "sparse_attention_freq"))
    every, offset = fields.whole("index_topk_freq", 1), fields.whole("index_skip_topk_offset", 2, least=0)
    return sum(max(layer - offset + 1, 0) % every == 0 for layer in range(attention_layers))


@dataclass(frozen=True)
class StateSize:
    """One layer's state of one request."""

    conv: int  # values of past inputs
    recurrent: int  # values of the recurrent state
    recurrent_dtype: str | None = None  # of a mechanism that has one of its own; None = that of the model


def state_size(fields: Fields) -> StateSize:
    """The state of a linear-attention, state-space or convolution layer; InputError if no known field describes it.

    >>> state_size(Fields("config.json", {"conv_L_cache": 3, "hidden_size": 1024}))
    StateSize(conv=2048, recurrent=0, recurrent_dtype=None)
    """
    for field, size in MECHANISMS.items():
        if field in fields:
            return size(fields)
    raise InputError(
        f"{fields.name}: some layers keep a state that is not modelled. Known: configs with {', '.join(MECHANISMS)}."
    )


def state_bytes(fields: Fields, dtype: str | None = None) -> int:
    """Bytes of that state. The recurrent part has `dtype`, else that of the config, else that of the mechanism."""
    size, model = state_size(fields), config_dtype(fields)
    stated = fields.first("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    recurrent = dtype or (fields.values[stated] if stated else size.recurrent_dtype or model)
    if not isinstance(recurrent, str) or recurrent not in BYTES:
        raise InputError(f"{fields.name}: the dtype of the state is not one of {', '.join(BYTES)}.")
    return size.conv * BYTES[model] + size.recurrent * BYTES[recurrent]


def _gated_delta_net(fields: Fields) -> StateSize:
    """Qwen3-Next and later."""
    key_heads, key_dim = fields.whole("linear_num_key_heads"), fields.whole("linear_key_head_dim")
    value_heads, value_dim = fields.whole("linear_num_value_heads"), fields.whole("linear_value_head_dim")
    inputs = 2 * key_heads * key_dim + value_heads * value_dim
    return StateSize((fields.whole("linear_conv_kernel_dim") - 1) * inputs, value_heads * value_dim * key_dim)


def _kimi_delta(fields: Fields) -> StateSize:
    """Kimi delta attention: Kimi Linear, Kimi K3."""
    linear = fields.values["linear_attn_config"]
    inner = Fields(fields.name, linear if isinstance(linear, dict) else {}, fields.hint)
    return _delta(inner, "num_heads", "head_dim", "short_conv_kernel_size")


def _glm_delta(fields: Fields) -> StateSize:
    """The same mechanism in GLM-5.3-Flash."""
    return _delta(fields, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")


def _delta(fields, heads_field, dim_field, kernel_field):
    heads, dim = fields.whole(heads_field), fields.whole(dim_field)
    return StateSize((fields.whole(kernel_field, 4) - 1) * 3 * heads * dim, heads * dim * dim, "float32")


def _nemotron(fields: Fields) -> StateSize:
    """Mamba-2 with the names of Nemotron-H, whose recurrent state is float32 in vLLM."""
    heads, dim, states = fields.whole("mamba_num_heads"), fields.whole("mamba_head_dim"), fields.whole("ssm_state_size")
    inputs = heads * dim + 2 * fields.whole("n_groups") * states
    return StateSize((fields.whole("conv_kernel") - 1) * inputs, heads * dim * states, "float32")


def _mamba2(fields: Fields) -> StateSize:
    """Mamba-2 with the names of Bamba, Granite 4 and Falcon-H1."""
    heads, states = fields.whole("mamba_n_heads"), fields.whole("mamba_d_state")
    inner = fields.values.get("mamba_d_ssm") or fields.whole("mamba_expand", 2) * fields.whole("hidden_size")
    dim = fields.values.get("mamba_d_head")
    dim = inner // heads if dim in (None, "auto") else fields.whole("mamba_d_head")
    inputs = fields.checked("mamba_d_ssm", inner) + 2 * fields.whole("mamba_n_groups") * states
    return StateSize((fields.whole("mamba_d_conv") - 1) * inputs, heads * dim * states)


def _mamba1(fields: Fields) -> StateSize:
    """Mamba-1 with the names of Jamba."""
    inner = fields.whole("mamba_expand", 2) * fields.whole("hidden_size")
    return StateSize((fields.whole("mamba_d_conv") - 1) * inner, inner * fields.whole("mamba_d_state"))


def _lightning(fields: Fields) -> StateSize:
    """Lightning attention of MiniMax-01: a matrix for each head."""
    heads = fields.whole("num_attention_heads")
    dim = fields.whole("head_dim", fields.whole("hidden_size", heads) // heads)
    return StateSize(0, heads * dim * dim)


def _short_convolution(fields: Fields) -> StateSize:
    """LFM2: past inputs only."""
    width = fields.whole("conv_dim", fields.whole("hidden_size"))
    return StateSize((fields.whole("conv_L_cache") - 1) * width, 0)


MECHANISMS: dict[str, Callable[[Fields], StateSize]] = {  # the first field that a config has decides
    "linear_attn_config": _kimi_delta,
    "linear_num_heads": _glm_delta,
    "linear_num_key_heads": _gated_delta_net,
    "mamba_num_heads": _nemotron,
    "mamba_n_heads": _mamba2,
    "mamba_d_state": _mamba1,
    "conv_L_cache": _short_convolution,
    "attn_type_list": _lightning,
}


INDEXED = 4  # V4's ratio of the layers with an indexer


def compressed_kinds(fields: Fields, value_bits: int, indexer_bits: int, *, draft: bool) -> list[LayerKind]:
    """The windows, entries and indexers of such a model."""
    layers = fields.whole("num_hidden_layers", greatest=10_000)
    ratios = numbers(fields, fields.values, "compress_ratios")
    sources = numbers(fields, fields.values, "kv_source_layer_ids") if "kv_source_layer_ids" in fields else None
    ratios = ratios if draft else ratios[:layers]
    entry = fields.whole("head_dim") * value_bits // 8
    key = fields.whole("index_head_dim") * indexer_bits // 8
    kinds = [LayerKind("window", len(ratios), entry, window=fields.whole("sliding_window"))]
    kept = Counter(ratio for layer, ratio in enumerate(ratios) if ratio and (sources is None or layer in sources))
    kinds += [LayerKind("latent", kept[ratio], entry, tokens_per_entry=ratio) for ratio in sorted(kept)]
    indexed = {ratio: kept[ratio] for ratio in sorted(kept) if sources is not None or ratio == INDEXED}
    kinds += [LayerKind("latent", indexed[ratio], key, tokens_per_entry=ratio, indexer=True) for ratio in indexed]
    return kinds


UNKNOWN = ("ssm_cfg", "state_size")  # Mamba without attention: nothing to share by prefix


def layer_kinds(
    config: Mapping[str, Any] | str | Path,
    dtype: str | None = None,
    *,
    indexer_dtype: str | None = None,
    state_dtype: str | None = None,
    draft: bool = False,
) -> tuple[LayerKind, ...]:
    """What the layers of a model keep, by kind.

    Args:
        config: A name of the catalog, the path of a config.json, or its fields.
        dtype: Of keys and values; by default that of the weights. 4 bits are counted without their scales.
        indexer_dtype: Of the keys of an indexer; by default that of keys and values.
        state_dtype: Of recurrent states; by default what the config states, else as vLLM chooses.
        draft: Count the layers that predict further tokens, too.

    Raises:
        UsageError: The file is missing, or a dtype is unknown.
        InputError: A field is missing or wrong, or a kind of layer is not modelled; it names the field.

    >>> for kind in layer_kinds("gpt-oss-20b"):
    ...     print(kind.kind, kind.layers, kind.token_bytes, kind.window)
    full 12 2048 0
    window 12 2048 128
    """
    fields = read_config(config)
    bits = kv_bits(fields, dtype)
    indexer_bits = kv_bits(fields, indexer_dtype) if indexer_dtype is not None else bits
    if "compress_ratios" in fields:
        return tuple(compressed_kinds(fields, bits, indexer_bits, draft=draft))
    if unknown := fields.first(*UNKNOWN):
        raise InputError(f"{fields.name}: {unknown} is not modelled: no layer has attention.")
    counts = Counter(layer_schedule(fields))
    counts["full"] += counts["both"]
    counts["state"] += counts["both"]
    added = draft_layers(fields) if draft else 0
    kinds = [*_attention(fields, counts, bits, added), *_indexers(fields, counts, indexer_bits, added)]
    if counts["state"]:
        kinds.append(LayerKind("state", counts["state"], state_bytes=state_bytes(fields, state_dtype)))
    return tuple([*kinds, *_short_convolutions(fields, counts)])


def rank_layers(deployment: Deployment) -> tuple[LayerKind, ...]:
    """What the layers of one GPU of a deployment keep, by kind, as its engine lays them out.

    With pipeline parallelism they are those of the stage that keeps most.

    Raises:
        UsageError: The engine refuses the deployment, or it is not modelled.
        InputError: A field of the config is missing or wrong, or a kind of layer is not modelled.

    >>> [kind.token_bytes for kind in rank_layers(Deployment("qwen3-235b-a22b", tensor_parallel_size=8))]
    [512]
    """
    if deployment.pipeline_parallel_size > 1 or deployment.speculative is not None:
        raise UsageError("Layers of pipeline stages and drafters are not modelled yet.")
    fields, tensor = read_config(deployment.model), deployment.tensor_parallel_size
    kinds = layer_kinds(deployment.model, None if deployment.kv_cache_dtype == "auto" else deployment.kv_cache_dtype)
    if tensor == 1:
        return kinds
    if any(kind.kind == "state" for kind in kinds):
        raise UsageError("States under tensor parallelism are not modelled yet.")
    heads = key_value_heads(fields)
    return tuple(
        kind
        if kind.kind == "latent"
        else replace(kind, token_bytes=kind.token_bytes // heads * max(1, heads // tensor))
        for kind in kinds
    )


def cache_bytes(kinds: Iterable[LayerKind], tokens: int, *, states: bool = True) -> int:
    """Bytes that one request of `tokens` tokens keeps: windows hold at most their length, states their size.

    >>> cache_bytes(layer_kinds("gpt-oss-20b"), 1000)  # 12 x 2048 bytes of 1,000 tokens and of 128
    27721728
    """
    return sum(_bytes_of(kind, tokens, states) for kind in kinds)


def _bytes_of(kind: LayerKind, tokens: int, states: bool) -> int:
    if kind.kind == "state":
        return kind.layers * kind.state_bytes if states else 0
    held = min(tokens, kind.window) if kind.window else tokens // kind.tokens_per_entry
    return kind.layers * kind.token_bytes * held


def growing_bytes(kinds: Iterable[LayerKind]) -> int:
    """Bytes of one token in all layers that keep tokens; those of windows leave when the window has passed.

    Layers that keep an entry for several tokens count for their share of it, rounded down.
    """
    return sum(kind.bytes_per_token for kind in kinds if kind.kind != "state")


def draft_layers(fields: Fields) -> int:
    """Layers of attention that predict further tokens; InputError where a config does not state their kind."""
    added = fields.whole("num_nextn_predict_layers", 0, least=0) or fields.whole("mtp_num_hidden_layers", 0, least=0)
    if not added and fields.values.get("use_mtp") is True:
        added = fields.whole("num_mtp_modules", 0, least=0) * fields.whole("mtp_transformer_layers", 1)
    return added


def _attention(fields, counts, bits, added):
    """The layers of attention, full ones first."""
    kinds = []
    if layers := counts["full"] + added:
        size = cached_values(fields) * bits // 8
        kinds.append(LayerKind("latent" if is_latent(fields) else "full", layers, size))
    if counts["window"]:
        window = fields.first("sliding_window", "sliding_window_size")
        size = cached_values(fields, is_window=True) * bits // 8
        kinds.append(LayerKind("window", counts["window"], size, window=fields.whole(window or "sliding_window")))
    if counts["chunk"]:
        size = cached_values(fields) * bits // 8
        kinds.append(LayerKind("chunk", counts["chunk"], size, window=fields.whole("attention_chunk_size")))
    return kinds


def _indexers(fields, counts, bits, added):
    """The keys of indexers, which choose the tokens that sparse attention sees (DeepSeek V3.2 and later)."""
    if "index_head_dim" not in fields:
        return []
    layers = indexer_layers(fields, counts["full"]) + added
    size = fields.whole("index_head_dim") * bits // 8
    return [LayerKind("latent", layers, size, tokens_per_entry=fields.whole("index_kpool", 1), indexer=True)]


def _short_convolutions(fields, counts):
    """Inkling: each layer also keeps past inputs of four convolutions: of keys, values, and two of the hidden width."""
    if fields.values.get("use_sconv") is not True:
        return []
    past, wide = fields.whole("sconv_kernel_size", 4) - 1, 2 * fields.whole("hidden_size")
    size = BYTES[config_dtype(fields)]
    return [
        LayerKind("state", counts[word], state_bytes=past * (wide + cached_values(fields, is_window=is_window)) * size)
        for word, is_window in (("full", False), ("window", True))
        if counts[word]
    ]


def kv_bytes_per_token(config: Mapping[str, Any] | str | Path, *, dtype: str | None = None) -> int:
    """Bytes of one token's KV over all layers; `dtype` replaces the dtype of the weights.

    InputError names the field that a config lacks.

    >>> kv_bytes_per_token({"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    ...                     "hidden_size": 8192, "torch_dtype": "bfloat16"})  # Llama-3-70B
    327680
    >>> kv_bytes_per_token({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64})  # DeepSeek-V3
    70272
    """
    return growing_bytes(layer_kinds(config, dtype))


def chosen(model_config: str | Path | None, kv_bytes: int | None) -> int | None:
    """Bytes per token of a command's options: of the model, or as given; None without either, UsageError with both.

    >>> chosen(None, 4096)
    4096
    """
    if model_config is not None and kv_bytes is not None:
        raise UsageError("--model-config and --kv-bytes-per-token cannot be combined. Use one of them.")
    return kv_bytes_per_token(model_config) if model_config is not None else kv_bytes
