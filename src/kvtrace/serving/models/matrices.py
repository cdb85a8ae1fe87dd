"""The matrices of a model, layer by layer, from its config.json: their sizes, their names, and how GPUs share them.

Names are those of a checkpoint within its layer (`self_attn.q_proj`), since a quantised checkpoint lists by name what
it leaves in 16 bits. How tensor parallelism divides a matrix is vLLM's way (model_executor/layers/linear.py): by
outputs, by inputs, by heads of keys and values of which a GPU holds at least one, by vocabulary, or not at all. Vectors
(norms, biases) are left out: less than 0.1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..._base.errors import InputError
from .config import Fields, all_layers, numbers
from .layers import draft_layers, head_size, indexer_layers, is_latent, key_value_heads
from .mlps import MLPS, Matrix, Split, expert_count, mlp_kinds, model_type_of

TIED = ("cohere", "gemma", "gpt2", "opt", "starcoder2")  # model types whose embedding is also the head, unless stated
GATED_QUERIES = ("qwen3_next", "qwen3_5")  # model types whose attention has a gate as wide as its queries
# fields of layers whose KV bytes are known, and whose matrices are not modelled
FOREIGN = {"block_configs", "kv_source_layer_ids", "num_attention_groups", "swa_kv_lora_rank",
           "ssm_cfg", "use_sconv"}  # fmt: skip


@dataclass(frozen=True)
class ModelMatrices:
    """All matrices of a model; the layers of one kind share theirs."""

    layers: tuple[tuple[Matrix, ...], ...]
    embeddings: tuple[Matrix, ...]  # before the first layer
    head: tuple[Matrix, ...]  # after the last layer; () = an embedding is also the head
    vision: tuple[Matrix, ...] = ()  # of images, which tokens of text do not use


def model_matrices(fields: Fields) -> ModelMatrices:
    """The matrices of a model; InputError names a field that is missing, wrong, or of a kind that is not modelled."""
    foreign = FOREIGN & {name for name, value in fields.values.items() if value not in (0, False, [])}
    if foreign:
        raise InputError(
            f"{fields.name}: layers with {min(foreign)} have KV bytes, but no times: their products are not modelled."
        )
    hidden, vocabulary = fields.whole("hidden_size"), fields.whole("vocab_size")
    embeddings = [Matrix("embed_tokens", vocabulary, hidden, "vocabulary", is_linear=False)]
    model_type = model_type_of(fields)
    if model_type in POSITIONS:  # learnt, with some rows more
        rows = fields.whole(fields.first("n_positions") or "max_position_embeddings") + POSITIONS[model_type]
        embeddings.append(Matrix("embed_positions", rows, hidden, "whole", is_linear=False))
    if narrow := fields.whole("hidden_size_per_layer_input", 0, least=0):  # Gemma 3n and 4: an embedding for each layer
        wide = narrow * fields.whole("num_hidden_layers", greatest=10_000)
        rows = fields.whole("vocab_size_per_layer_input", vocabulary)
        embeddings += [
            Matrix("embed_tokens_per_layer", rows, wide, "vocabulary", is_linear=False),
            Matrix("per_layer_model_projection", wide, hidden),
        ]
    tied = fields.flag("tie_word_embeddings", model_type.startswith(TIED))
    head = () if tied else (Matrix("lm_head", vocabulary, hidden, "vocabulary", is_linear=False),)
    return ModelMatrices(tuple(_layers(fields)), tuple(embeddings), head, tuple(_vision(fields)))


POSITIONS = {"gpt2": 0, "gpt_bigcode": 0, "opt": 2}


def _layers(fields: Fields) -> Iterator[tuple[Matrix, ...]]:
    """The matrices of each layer."""
    built: dict[LayerRow, tuple[Matrix, ...]] = {}
    for row in layer_rows(fields):
        if row not in built:
            times = 2 if fields.values.get("use_double_wide_mlp") is True and not row.has_keys else 1  # Gemma 4 E2B
            built[row] = (*_mixer(fields, row), *MLPS[row.mlp](fields, times), *_per_layer_inputs(fields))
        yield built[row]


class LayerRow(NamedTuple):
    """What decides the matrices of a layer."""

    word: str  # as in config.py
    mlp: str  # of MLPS
    has_indexer: bool = False
    has_keys: bool = True  # False: it uses the keys and values of an earlier layer
    ratio: int = 0  # tokens of a compressed entry


def layer_rows(fields: Fields) -> list[LayerRow]:
    """A row for each layer."""
    layers = fields.whole("num_hidden_layers", greatest=10_000)
    compressed = numbers(fields, fields.values, "compress_ratios") if "compress_ratios" in fields else None
    if compressed is not None and len(compressed) < layers:
        raise InputError(
            f"{fields.name}: compress_ratios has {len(compressed):,} layers, not {layers:,}. {fields.hint}"
        )
    words = ["full"] * layers if compressed else all_layers(fields)
    own = layers - fields.whole("num_kv_shared_layers", 0, least=0, greatest=layers)
    indexed = _indexed(fields, words) if "index_head_dim" in fields and not compressed else set()
    mlps = mlp_kinds(fields, layers)
    return [
        LayerRow(words[layer], mlps[layer], layer in indexed, layer < own, compressed[layer] if compressed else 0)
        for layer in range(layers)
    ]


def _indexed(fields: Fields, words: list[str]) -> set[int]:
    """The layers with an indexer of their own: as many as the config says, the last ones with attention."""
    attention = [layer for layer, word in enumerate(words) if word in ("full", "both")]
    return set(attention[len(attention) - indexer_layers(fields, range(len(attention))) :])


# --- attention, and what stands in its place


def _mixer(fields: Fields, row: LayerRow) -> list[Matrix]:
    if row.word == "none":
        return []
    if "compress_ratios" in fields:
        return _compressed(fields, row.ratio)
    states = _state(fields) if row.word in ("state", "both") else []
    if row.word == "state":
        return states
    attention = _latent(fields) if is_latent(fields) else _grouped(fields, row.word, row.has_keys)
    return [*states, *attention, *(_indexer(fields) if row.has_indexer else [])]


def head_sizes(fields: Fields, word: str) -> tuple[int, int, int, int]:
    """Heads of queries, heads of keys, and the widths of a key and of a value, in a layer of this kind."""
    heads, kv_heads, key = fields.whole("num_attention_heads"), key_value_heads(fields), head_size(fields)
    value = fields.whole("v_head_dim", key)
    if word == "window":  # MiMo, Inkling
        heads = fields.whole("swa_num_attention_heads", heads)
        kv_heads = fields.whole("swa_num_key_value_heads", kv_heads)
        value = fields.whole("swa_v_head_dim", fields.whole("swa_head_dim", value))
        key = fields.whole("swa_head_dim", key)
    elif "global_head_dim" in fields or "num_global_key_value_heads" in fields:  # Gemma 4
        kv_heads = fields.whole("num_global_key_value_heads", kv_heads)
        key = value = fields.whole("global_head_dim", key)
    return heads, kv_heads, key, value


def _grouped(fields: Fields, word: str, has_keys: bool) -> list[Matrix]:
    hidden, name = fields.whole("hidden_size"), _attention_name(fields)
    heads, kv_heads, key, value = head_sizes(fields, word)
    queries = heads * key * (2 if query_gate(fields) else 1)
    keys = [
        Matrix(f"{name}.k_proj", kv_heads * key, hidden, "heads", heads=kv_heads),
        Matrix(f"{name}.v_proj", kv_heads * value, hidden, "heads", heads=kv_heads),
    ]
    return [
        Matrix(f"{name}.q_proj", queries, hidden),
        *(keys if has_keys else []),
        Matrix(f"{name}.o_proj", hidden, heads * value, "inputs"),
    ]


def _attention_name(fields: Fields) -> str:
    return "mixer" if model_type_of(fields) == "nemotron_h" else "self_attn"


def query_gate(fields: Fields) -> bool:
    """Whether attention has a gate as wide as its queries."""
    return fields.flag("attn_output_gate", model_type_of(fields).startswith(GATED_QUERIES))


def _latent(fields: Fields) -> list[Matrix]:
    hidden, heads, rank = fields.whole("hidden_size"), fields.whole("num_attention_heads"), fields.whole("kv_lora_rank")
    rope, nope = fields.whole("qk_rope_head_dim", least=0), fields.whole("qk_nope_head_dim")
    value, through = fields.whole("v_head_dim"), fields.whole("q_lora_rank", 0, least=0)
    queries = [Matrix("self_attn.q_proj", heads * (nope + rope), hidden)]
    if through:
        queries = [
            Matrix("self_attn.q_a_proj", through, hidden, "whole"),
            Matrix("self_attn.q_b_proj", heads * (nope + rope), through),
        ]
    if fields.values.get("mla_use_output_gate") is True:  # Kimi K3
        queries.append(Matrix("self_attn.g_proj", heads * value, hidden))
    return [
        *queries,
        Matrix("self_attn.kv_a_proj_with_mqa", rank + rope, hidden, "whole"),
        Matrix("self_attn.kv_b_proj", heads * (nope + value), rank),
        Matrix("self_attn.o_proj", hidden, heads * value, "inputs"),
    ]


def _indexer(fields: Fields) -> list[Matrix]:
    """Queries from their latent (or from the hidden state), a key, and a weight for each head."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("index_n_heads")
    dim, through = fields.whole("index_head_dim"), fields.whole("q_lora_rank", fields.values.get("hidden_size"))
    return [
        Matrix("self_attn.indexer.wq_b", heads * dim, through, "whole"),
        Matrix("self_attn.indexer.wk", dim, hidden, "whole"),
        Matrix("self_attn.indexer.weights_proj", heads, hidden, "whole", is_linear=False),
    ]


def _compressed(fields: Fields, ratio: int) -> list[Matrix]:
    """DeepSeek V4: one key a token, compressed entries, outputs through groups of low rank, and hyper-connections."""
    hidden, heads, dim = fields.whole("hidden_size"), fields.whole("num_attention_heads"), fields.whole("head_dim")
    through, groups, low = fields.whole("q_lora_rank"), fields.whole("o_groups"), fields.whole("o_lora_rank")
    streams = fields.whole("hc_mult")
    mixed = (2 + streams) * streams
    parts = [
        Matrix("attn.wq_a", through, hidden, "whole"),
        Matrix("attn.wkv", dim, hidden, "whole"),
        Matrix("attn.wq_b", heads * dim, through),
        Matrix("attn.wo_a", groups * low, heads * dim // groups),
        Matrix("attn.wo_b", hidden, groups * low, "inputs"),
        *(Matrix(f"hc_{part}_fn", mixed, streams * hidden, "whole", is_linear=False, bytes_each=4)
          for part in ("attn", "ffn")),
    ]  # fmt: skip
    if ratio:
        parts.append(_compressor("attn.compressor", dim, hidden, ratio))
    if ratio == 4:  # vLLM's rule: only these layers choose among their entries
        inner, count = fields.whole("index_head_dim"), fields.whole("index_n_heads")
        parts += [
            Matrix("attn.indexer.wq_b", count * inner, through, "whole"),
            Matrix("attn.indexer.weights_proj", count, hidden, "whole", is_linear=False),
            _compressor("attn.indexer.compressor", inner, hidden, ratio),
        ]
    return parts


def _compressor(module: str, dim: int, hidden: int, ratio: int) -> Matrix:
    """Entries and their gates; those of ratio 4 overlap, and take twice as many."""
    return Matrix(f"{module}.wkv_gate", 2 * dim * (2 if ratio == 4 else 1), hidden, "whole", is_linear=False)


def _state(fields: Fields) -> list[Matrix]:
    build = next((build for field, build in STATES.items() if field in fields), None)
    if build is None:
        raise InputError(f"{fields.name}: the products of layers with a state are known with {', '.join(STATES)}.")
    return build(fields)


def _gated_delta_net(fields: Fields) -> list[Matrix]:
    """Qwen3-Next and later: queries, keys, values and a gate, two numbers a head, a convolution, out."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("linear_num_value_heads")
    keys = fields.whole("linear_num_key_heads") * fields.whole("linear_key_head_dim")
    values = heads * fields.whole("linear_value_head_dim")
    return [
        Matrix("linear_attn.in_proj_qkv", 2 * keys + values, hidden),
        Matrix("linear_attn.in_proj_z", values, hidden),
        Matrix("linear_attn.in_proj_ba", 2 * heads, hidden),
        Matrix("linear_attn.conv1d", 2 * keys + values, fields.whole("linear_conv_kernel_dim"), is_linear=False),
        Matrix("linear_attn.out_proj", hidden, values, "inputs"),
    ]


def _kimi_delta(fields: Fields) -> list[Matrix]:
    """Kimi Linear and Kimi K3."""
    linear = fields.values["linear_attn_config"]
    inner = Fields(fields.name, linear if isinstance(linear, dict) else {}, fields.hint)
    return _delta(fields, inner.whole("num_heads"), inner.whole("head_dim"), inner.whole("short_conv_kernel_size", 4))


def _glm_delta(fields: Fields) -> list[Matrix]:
    """The same mechanism in GLM-5.3-Flash."""
    return _delta(
        fields,
        fields.whole("linear_num_heads"),
        fields.whole("linear_head_dim"),
        fields.whole("linear_conv_kernel_dim", 4),
    )


def _delta(fields: Fields, heads: int, dim: int, kernel: int) -> list[Matrix]:
    """Queries, keys, values, their convolutions, a decay (f) and a gate (g), one number a head, out.

    The decay and the gate go through a low rank, or are whole matrices: the gate of Kimi K3, both of Ling 3.
    """
    hidden, wide = fields.whole("hidden_size"), heads * dim
    linear = fields.values.get("linear_attn_config")
    whole = "g" if isinstance(linear, dict) and linear.get("use_full_rank_gate") is True else ""
    whole = "fg" if model_type_of(fields) == "bailing_hybrid" else whole
    return [
        *(Matrix(f"self_attn.{name}_proj", wide, hidden) for name in "qkv"),
        Matrix("self_attn.conv1d", 3 * wide, kernel, is_linear=False),
        Matrix("self_attn.b_proj", heads, hidden),
        *(Matrix(f"self_attn.{name}_proj", wide, hidden) for name in whole),
        *(Matrix(f"self_attn.{name}_a_proj", dim, hidden, "whole") for name in "fg" if name not in whole),
        *(Matrix(f"self_attn.{name}_b_proj", wide, dim) for name in "fg" if name not in whole),
        Matrix("self_attn.o_proj", hidden, wide, "inputs"),
    ]


def _mamba2(fields: Fields) -> list[Matrix]:
    """Mamba-2, with the names of Nemotron-H or of Bamba, Granite 4 and Falcon-H1; each GPU has a group at least."""
    hidden, inner = fields.whole("hidden_size"), fields.values.get("mamba_d_ssm")
    if "mamba_num_heads" in fields:
        heads, kernel, name = fields.whole("mamba_num_heads"), fields.whole("conv_kernel"), "mixer"
        inner, groups, states = heads * fields.whole("mamba_head_dim"), "n_groups", "ssm_state_size"
    else:
        heads, kernel, name = fields.whole("mamba_n_heads"), fields.whole("mamba_d_conv"), "mamba"
        groups, states = "mamba_n_groups", "mamba_d_state"
        inner = fields.whole("mamba_d_ssm") if inner else fields.whole("mamba_expand", 2) * hidden
    count = fields.whole(groups)
    grouped = 2 * count * fields.whole(states)
    return [
        Matrix(f"{name}.in_proj", 2 * inner + heads, hidden),
        Matrix(f"{name}.in_proj", grouped, hidden, "heads", heads=count),
        Matrix(f"{name}.conv1d", inner, kernel, is_linear=False),
        Matrix(f"{name}.conv1d", grouped, kernel, "heads", heads=count, is_linear=False),
        Matrix(f"{name}.out_proj", hidden, inner, "inputs"),
    ]


def _mamba1(fields: Fields) -> list[Matrix]:
    """Mamba-1 with the names of Jamba."""
    hidden, states = fields.whole("hidden_size"), fields.whole("mamba_d_state")
    inner, rank = fields.whole("mamba_expand", 2) * hidden, fields.values.get("mamba_dt_rank")
    rank = -(-hidden // 16) if rank in (None, "auto") else fields.whole("mamba_dt_rank")
    return [
        Matrix("mamba.in_proj", 2 * inner, hidden),
        Matrix("mamba.conv1d", inner, fields.whole("mamba_d_conv"), is_linear=False),
        Matrix("mamba.x_proj", rank + 2 * states, inner, "inputs"),
        Matrix("mamba.dt_proj", inner, rank),
        Matrix("mamba.A", inner, states, is_linear=False, bytes_each=4),
        Matrix("mamba.out_proj", hidden, inner, "inputs"),
    ]


def _short_convolution(fields: Fields) -> list[Matrix]:
    """LFM2: two gates around a convolution."""
    hidden = fields.whole("hidden_size")
    width = fields.whole("conv_dim", hidden)
    return [
        Matrix("conv.in_proj", 3 * width, hidden),
        Matrix("conv.conv", width, fields.whole("conv_L_cache"), is_linear=False),
        Matrix("conv.out_proj", hidden, width, "inputs"),
    ]


STATES: dict[str, Callable[[Fields], list[Matrix]]] = {  # the first field that a config has decides
    "linear_attn_config": _kimi_delta,
    "linear_num_heads": _glm_delta,
    "linear_num_key_heads": _gated_delta_net,
    "mamba_num_heads": _mamba2,
    "mamba_n_heads": _mamba2,
    "mamba_d_state": _mamba1,
    "conv_L_cache": _short_convolution,
}


def _per_layer_inputs(fields: Fields) -> list[Matrix]:
    """Gemma 3n and 4: what leads from an embedding of the layer's own."""
    narrow, hidden = fields.whole("hidden_size_per_layer_input", 0, least=0), fields.whole("hidden_size")
    if not narrow:
        return []
    return [
        Matrix("per_layer_input_gate", narrow, hidden, "whole"),
        Matrix("per_layer_projection", hidden, narrow, "whole"),
    ]


# --- what predicts further tokens


def draft_matrices(fields: Fields) -> list[Matrix]:
    """The layers of the model itself that predict further tokens (MTP), each with what joins two hidden states."""
    count, hidden = draft_layers(fields), fields.whole("hidden_size")
    if not count:
        return []
    kind = "experts" if expert_count(fields) else "dense"
    joined = Matrix("eh_proj", hidden, 2 * hidden, "whole", is_linear=False)
    layer = [joined, *_mixer(fields, LayerRow("full", kind, "index_head_dim" in fields)), *MLPS[kind](fields, 1)]
    return layer * count


def eagle_matrices(head: Fields, fields: Fields) -> list[Matrix]:
    """An EAGLE head's layers, what joins the model's hidden states, and its output; the embedding is the model's."""
    hidden, target = head.whole("hidden_size"), fields.whole("hidden_size")
    own = model_matrices(head)
    states = 3 if "draft_vocab_size" in head else 1  # EAGLE-3 reads three layers, and its layer reads two inputs
    layers = [part for layer in own.layers for part in layer]
    if states == 3:
        first = {f"self_attn.{name}_proj" for name in "qkv"}
        count = len(own.layers[0])
        layers = [replace(part, inputs=2 * hidden) if place < count and part.module in first else part
                  for place, part in enumerate(layers)]  # fmt: skip
    joined = Matrix("fc", hidden, 3 * target if states == 3 else hidden + target, "whole", is_linear=False)
    output = Matrix("lm_head", head.whole("draft_vocab_size", 1), hidden, "vocabulary", is_linear=False)
    return [joined, *layers, *([output] if states == 3 else [])]


# --- images


def _vision(fields: Fields) -> list[Matrix]:
    """The tower that reads images: attention and MLP of each layer, and what leads to the language model."""
    stated = fields.values.get("vision_config")
    if not isinstance(stated, dict):
        return []
    vision = Fields(fields.name, stated, fields.hint)
    layers = vision.first("depth", "num_hidden_layers", "vt_num_hidden_layers")
    width = vision.first("hidden_size", "vt_hidden_size")
    if layers is None or width is None:
        return []
    count, wide = vision.whole(layers), vision.whole(width)
    inner = vision.whole(vision.first("intermediate_size", "vt_intermediate_size") or "intermediate_size", 4 * wide)
    gated = model_type_of(vision) in ("gemma4_vision", "pixtral", "qwen2_5_vl")
    split: Split = "whole" if model_type_of(vision).startswith("gemma4") else "outputs"
    merged = wide * _merge(vision) ** 2
    out = vision.whole("out_hidden_size", fields.values.get("hidden_size"))
    mergers = 1 + len(
        numbers(vision, stated, "deepstack_visual_indexes") if "deepstack_visual_indexes" in vision else ()
    )
    names = [("qkv", 3 * wide, wide), ("proj", wide, wide), ("up", inner, wide), ("down", wide, inner)]
    names += [("gate", inner, wide)] if gated else []
    places = 2 * vision.whole("position_embedding_size", 0, least=0)  # Gemma 4: rows and columns
    return [
        *([Matrix("vision.places", places, wide, split, is_linear=False)] if places else []),
        *(Matrix(f"vision.{name}", count * outputs, inputs, split, is_linear=False) for name, outputs, inputs in names),
        Matrix("vision.merger", mergers * (merged + out), merged, split, is_linear=False),
    ]


def _merge(vision: Fields) -> int:
    stated = vision.values.get("spatial_merge_size", vision.values.get("merge_kernel_size", 1))
    side = stated[0] if isinstance(stated, list) and stated else stated
    return vision.checked("spatial_merge_size", side)
