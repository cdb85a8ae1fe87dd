"""KV-cache bytes per token, from a model's config.json as Hugging Face repositories have it.

Multi-head, grouped and multi-query attention: 2 * layers * kv_heads * head_dim * bytes per value. Multi-head latent
attention (DeepSeek-V2 and later): layers * (kv_lora_rank + qk_rope_head_dim) * bytes per value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._base.errors import InputError, UsageError
from .described import Fields, read_config
from .model_table import MODELS

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1}
HINT = f"Try {', '.join(MODELS)}, a model's config.json, or --kv-bytes-per-token."


def kv_bytes_per_token(config: Mapping[str, Any] | str | Path, *, dtype: str | None = None) -> int:
    """Bytes of one token's KV over all layers; `dtype` replaces the dtype of the weights.

    InputError names the field that a config lacks.

    >>> kv_bytes_per_token({"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    ...                     "hidden_size": 8192, "torch_dtype": "bfloat16"})  # Llama-3-70B
    327680
    >>> kv_bytes_per_token({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64})  # DeepSeek-V3
    70272
    """
    fields = read_config(config, HINT)
    layers = fields.whole("num_hidden_layers")
    size = _value_bytes(fields, dtype)
    if "kv_lora_rank" in fields:
        return layers * (fields.whole("kv_lora_rank") + fields.whole("qk_rope_head_dim")) * size
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", heads)
    head_dim = fields.values.get("head_dim") or fields.whole("hidden_size") // heads  # some configs have 0
    return 2 * layers * kv_heads * fields.checked("head_dim", head_dim) * size


def chosen(model_config: str | Path | None, kv_bytes: int | None) -> int | None:
    """Bytes per token of a command's options: of the model, or as given; None without either, UsageError with both.

    >>> chosen(None, 4096)
    4096
    """
    if model_config is not None and kv_bytes is not None:
        raise UsageError("--model-config and --kv-bytes-per-token cannot be combined. Use one of them.")
    return kv_bytes_per_token(model_config) if model_config is not None else kv_bytes


def _value_bytes(fields: Fields, dtype: str | None) -> int:
    named = dtype or fields.values.get("torch_dtype") or fields.values.get("dtype") or "bfloat16"
    if not isinstance(named, str) or named not in BYTES:
        raise InputError(f"{fields.name}: the dtype is not one of {', '.join(BYTES)}. {HINT}")
    return BYTES[named]
