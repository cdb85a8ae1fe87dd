"""KV-cache bytes per token, from a model's config.json as Hugging Face repositories have it.

The sum over the layers that keep something for each token (layers.py). A layer with a window counts in full: its bytes
of a token while the token is in the window. States do not grow with tokens and are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from .layers import growing_bytes, layer_kinds


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
