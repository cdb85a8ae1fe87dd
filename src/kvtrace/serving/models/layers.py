"""The layers of a model by kind, from its config.json: what each keeps of a token, a window or a whole prefix.

Attention keeps keys and values of one token, a latent of both, or an indexer's key. The compressed attention of
DeepSeek V4 has a window of recent tokens, and one entry for every 2, 4 or 128 older ones: `compress_ratios` states for
each layer how many tokens an entry stands for; 0 is a layer with a window alone, and rows beyond the layers are the
draft's. In V4.1 only the layers of `kv_source_layer_ids` keep entries and an indexer's keys.

states.py has the states of linear attention, state space models and convolutions.

KV-cache bytes per token are the sum over the layers that keep something for each token. A layer with a window counts in
full: its bytes of a token while the token is in the window. States do not grow with tokens and are not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._base.errors import InputError, UsageError
from ...cache.layout import LayerKind
from .config import BYTES, Fields, config_dtype, kv_bits, layer_schedule, numbers, read_config
from .drafters import drafter_words
from .shares import Share, check_compressed, check_division, config_of, gpu_share, heads_of_gpu
from .states import state_bytes

if TYPE_CHECKING:
    from ..deployment import Deployment


def is_latent(fields: Fields) -> bool:
    """Whether attention keeps one latent for keys and values (DeepSeek-V2 and later)."""
    return "kv_lora_rank" in fields


def cached_values(fields: Fields, *, is_window: bool = False, gpus: int = 1) -> int:
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
    return heads_of_gpu(fields, heads, gpus) * (key + value)


def key_value_heads(fields: Fields) -> int:
    """The heads of keys and values, as many as those of queries unless stated."""
    return fields.whole("num_key_value_heads", fields.values.get("num_attention_heads"))


def head_size(fields: Fields) -> int:
    """The values of a key, or of a query's head."""
    stated = fields.values.get("head_dim")
    if not stated:  # some configs have 0
        stated = fields.whole("hidden_size") // fields.whole("num_attention_heads")
    return fields.checked("head_dim", stated)


def indexer_layers(fields: Fields, layers: range) -> int:
    """Layers with an indexer of their own, of a range of layers with attention; the others use an earlier one's choice.

    GLM-5.2 states `index_topk_freq` and `index_skip_topk_offset`; MiniMax M3 has indexers in its sparse layers alone.
    """
    stated = fields.values.get("layer_types")
    sparse = [stated[name] for name in stated if name == "minimax_m3_sparse"] if isinstance(stated, dict) else []
    if sparse:
        return fields.checked("layer_types", sparse[0])
    if isinstance(stated, list) and "minimax_m3_sparse" in stated:
        return stated[layers.start : layers.stop].count("minimax_m3_sparse")
    if "sparse_attention_freq" in fields:
        return sum(numbers(fields, fields.values, "sparse_attention_freq")[layers.start : layers.stop])
    every, offset = fields.whole("index_topk_freq", 1), fields.whole("index_skip_topk_offset", 2, least=0)
    return sum(max(layer - offset + 1, 0) % every == 0 for layer in layers)


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


RECENT_BLOCK = 64  # tokens of a block of V4's windows in vLLM
COMPRESSORS = {4: (4, 2), 128: (8, 1)}  # ratio -> tokens of a block of a compressor's inputs; how many ratios it holds
PACKED_ENTRY = 584  # bytes of fp8_ds_mla in V4: 448 values in FP8, 64 of rotation in 16 bits, 8 scales


def packed_kinds(fields: Fields, ratios: list[int]) -> list[LayerKind]:
    """The same as vLLM lays it out on each GPU, whatever the tensor parallelism, with the inputs of the compressors.

    Args:
        fields: The config.
        ratios: Of the layers, how many tokens an entry stands for; 0 is a window alone.
    """
    from ...cache.engines.packed_groups import PackedLayer

    sizes = fields.whole("head_dim"), fields.whole("index_head_dim")
    if sizes != (512, 128) or "kv_source_layer_ids" in fields or not set(ratios) <= {0, *COMPRESSORS}:
        raise UsageError(f"{fields.name}: vLLM's blocks of this compressed attention are not modelled.")
    window = fields.whole("sliding_window")
    kinds: list[LayerKind] = [PackedLayer("window", len(ratios), PACKED_ENTRY, window=window, block_size=RECENT_BLOCK)]
    for ratio in dict.fromkeys(ratio for ratio in ratios if ratio):
        layers, (block, held) = ratios.count(ratio), COMPRESSORS[ratio]
        compressed = [(PACKED_ENTRY, sizes[0])]
        if ratio == INDEXED:
            compressed = [(sizes[1] + 4, sizes[1]), *compressed]
        for entry, values in compressed:  # a compressor keeps two numbers of 4 bytes for each value
            kinds += [
                LayerKind("latent", layers, entry, tokens_per_entry=ratio, indexer=values != sizes[0]),
                PackedLayer("window", layers, 8 * held * values, window=held * ratio, block_size=block),
            ]
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
    share = Share(bits, indexer_bits, state_dtype=state_dtype)
    kinds = kinds_of(fields, layer_schedule(fields), share)
    if draft and (layers := draft_layers(fields)):
        kinds = merged_kinds(kinds, kinds_of(fields, ["full"] * layers, share))
    return tuple(kinds)


def kinds_of(fields: Fields, words: list[str], share: Share, layers: range | None = None) -> list[LayerKind]:
    """What a range of layers keeps on one GPU, by kind; without `layers`, all of them.

    Args:
        fields: The config.
        words: A word for each layer of the model.
        share: What one GPU keeps of a layer.
        layers: The range; None is all.
    """
    if unknown := fields.first(*UNKNOWN):
        raise InputError(f"{fields.name}: {unknown} is not modelled: no layer has attention.")
    layers = range(len(words)) if layers is None else layers
    counts = Counter(words[layers.start : layers.stop])
    counts["full"] += counts["both"]
    counts["state"] += counts["both"]
    first = sum(word in ("full", "both") for word in words[: layers.start])
    attention = range(first, first + counts["full"])
    kinds = [*_attention(fields, counts, share), *_indexers(fields, attention, share)]
    if counts["state"]:
        size = state_bytes(fields, share.state_dtype, share.gpus, share.drafted_tokens)
        kinds.append(LayerKind("state", counts["state"], state_bytes=size))
    return [*kinds, *_short_convolutions(fields, counts, share)]


def merged_kinds(kinds: Iterable[LayerKind], others: Iterable[LayerKind]) -> list[LayerKind]:
    """Layers of two models, or of two parts of one, by kind."""
    counts: Counter[LayerKind] = Counter()
    for kind in (*kinds, *others):
        counts[replace(kind, layers=0)] += kind.layers
    return [replace(kind, layers=layers) for kind, layers in counts.items()]


def rank_layers(deployment: Deployment) -> tuple[LayerKind, ...]:
    """What the layers of one GPU of a deployment keep, by kind, in the bytes that its engine takes for them.

    With pipeline parallelism they are those of the stage that keeps most. A drafter's layers are in its last stage.

    Raises:
        UsageError: The engine refuses the deployment, or does not take its dtype; or it is not modelled.
        InputError: A field of the config is missing or wrong, or a kind of layer is not modelled.

    >>> from kvtrace.serving.deployment import Deployment
    >>> [kind.token_bytes for kind in rank_layers(Deployment("qwen3-235b-a22b", tensor_parallel_size=8))]
    [512]
    >>> [kind.bytes_per_token for kind in rank_layers(Deployment("deepseek-v3.2", kv_cache_dtype="fp8"))]
    [40016, 8052]
    """
    return max(stage_layers(deployment), key=_weight)


def _weight(kinds: tuple[LayerKind, ...]) -> tuple[int, int]:
    return growing_bytes(kinds), sum(kind.layers * kind.state_bytes for kind in kinds)


def stage_layers(deployment: Deployment) -> tuple[tuple[LayerKind, ...], ...]:
    """What the layers of one GPU of each pipeline stage keep."""
    fields = config_of(deployment)
    check_division(fields, deployment)
    stages = pipeline_stages(fields, deployment.pipeline_parallel_size)
    drafter, drafted = drafter_words(fields, deployment)
    if "compress_ratios" in fields:
        check_compressed(fields, deployment)
        ratios = numbers(fields, fields.values, "compress_ratios")
        kinds = [packed_kinds(fields, ratios[layers.start : layers.stop]) for layers in stages]
        added = packed_kinds(fields, [0] * len(drafted)) if drafted else []
    else:
        words, share = layer_schedule(fields), gpu_share(fields, deployment)
        kinds = [kinds_of(fields, words, share, layers) for layers in stages]
        added = kinds_of(drafter, drafted, share) if drafted else []
    kinds[-1] = merged_kinds(kinds[-1], added)
    return tuple(tuple(part) for part in kinds)


def pipeline_stages(fields: Fields, number: int) -> list[range]:
    """The layers of each pipeline stage: as many each, and one more for the last stages but the very last.

    >>> pipeline_stages(Fields("config.json", {"num_hidden_layers": 10}), 4)
    [range(0, 2), range(2, 5), range(5, 8), range(8, 10)]
    """
    layers = fields.whole("num_hidden_layers", greatest=10_000)
    if number > layers:
        raise UsageError(f"--pipeline-parallel-size {number} is more than the {layers} layers of {fields.name}.")
    if number > 1 and isinstance(fields.values.get("layer_types"), dict):
        raise UsageError(
            f"{fields.name}: the catalog has no order of its layers, which pipeline stages need. Give the path of its "
            "config.json."
        )
    each, rest = divmod(layers, number)
    sizes = [each + (number - 1 - rest <= stage < number - 1) for stage in range(number)]
    starts = [sum(sizes[:stage]) for stage in range(number)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


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


def require_one_module(deployment: Deployment) -> None:
    """UsageError if a step of MTP has several modules, which see further tokens than the hits of `Drafting` count."""
    drafter = deployment.speculative
    if drafter is None or drafter.method != "mtp" or drafter.tokens == 1:
        return
    fields = read_config(deployment.served_model)
    if draft_layers(fields) > 1:
        raise UsageError(f"{fields.name} predicts with several modules, whose hits are not modelled. Try mtp:1.")


def draft_layers(fields: Fields) -> int:
    """Layers of attention that predict further tokens; InputError where a config does not state their kind."""
    added = fields.whole("num_nextn_predict_layers", 0, least=0) or fields.whole("mtp_num_hidden_layers", 0, least=0)
    if not added and fields.values.get("use_mtp") is True:
        added = fields.whole("num_mtp_modules", 0, least=0) * fields.whole("mtp_transformer_layers", 1)
    return added


def _attention(fields, counts, share):
    """The layers of attention, full ones first."""
    kinds = []
    if layers := counts["full"]:
        kinds.append(LayerKind("latent" if is_latent(fields) else "full", layers, _token_bytes(fields, share)))
    if counts["window"]:
        window, size = window_tokens(fields), _token_bytes(fields, share, is_window=True)
        kinds.append(LayerKind("window", counts["window"], size, window=window))
    if counts["chunk"]:
        size = _token_bytes(fields, share)
        kinds.append(LayerKind("chunk", counts["chunk"], size, window=fields.whole("attention_chunk_size")))
    return kinds


def window_tokens(fields: Fields) -> int:
    """The tokens that a layer with a window sees."""
    return fields.whole(fields.first("sliding_window", "sliding_window_size") or "sliding_window")


def _token_bytes(fields, share, is_window=False):
    if is_latent(fields) and share.latent_bytes is not None and not is_window:
        return share.latent_bytes
    return cached_values(fields, is_window=is_window, gpus=share.gpus) * share.value_bits // 8


def _indexers(fields, attention, share):
    """The keys of indexers, which choose the tokens that sparse attention sees (DeepSeek V3.2 and later)."""
    if "index_head_dim" not in fields:
        return []
    layers = indexer_layers(fields, attention)
    size = fields.whole("index_head_dim")
    scales = -(-size // 128) * 4 if share.indexer_scales else 0
    size = size * share.indexer_bits // 8 + scales
    pooled = fields.whole("index_kpool", 1)
    return [LayerKind("latent", layers, size, tokens_per_entry=pooled, indexer=True)] if layers else []


def _short_convolutions(fields, counts, share):
    """Inkling: each layer also keeps past inputs of four convolutions: of keys, values, and two of the hidden width."""
    if fields.values.get("use_sconv") is not True:
        return []
    past, wide = fields.whole("sconv_kernel_size", 4) - 1, 2 * fields.whole("hidden_size")
    size = BYTES[config_dtype(fields)]
    kept = {
        "full": cached_values(fields, gpus=share.gpus),
        "window": cached_values(fields, is_window=True, gpus=share.gpus),
    }
    return [
        LayerKind("state", counts[word], state_bytes=past * (wide + values) * size)
        for word, values in kept.items()
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
        raise UsageError("--model and --kv-bytes-per-token cannot be combined. Use one of them.")
    return kv_bytes_per_token(model_config) if model_config is not None else kv_bytes
