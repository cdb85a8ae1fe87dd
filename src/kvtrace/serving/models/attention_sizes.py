"""Values that one layer of attention keeps of one token: keys and values, a latent of both, or an indexer's key."""

from __future__ import annotations

from .config import Fields
from .layer_schedule import numbers


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
