"""KV-cache bytes of a token, from a model's config.json as Hugging Face repositories have it.

Multi-head, grouped and multi-query attention: 2 * layers * kv_heads * head_dim * bytes a value. Multi-head latent
attention (DeepSeek-V2 and later): layers * (kv_lora_rank + qk_rope_head_dim) * bytes a value.
"""

from __future__ import annotations

import json
from pathlib import Path

from .._base.errors import InputError, UsageError

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1}


def kv_bytes_per_token(config: dict | str | Path, *, dtype: str | None = None) -> int:
    """Bytes of one token's KV over all layers; `dtype` replaces the one the weights have.

    InputError names the field that a config lacks.

    >>> kv_bytes_per_token({"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    ...                     "hidden_size": 8192, "torch_dtype": "bfloat16"})  # Llama-3-70B
    327680
    >>> kv_bytes_per_token({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64})  # DeepSeek-V3
    70272
    """
    name, fields = _fields(config)
    layers = _whole(name, fields, "num_hidden_layers")
    size = _value_bytes(name, dtype or fields.get("torch_dtype") or fields.get("dtype") or "bfloat16")
    if "kv_lora_rank" in fields:
        return layers * (_whole(name, fields, "kv_lora_rank") + _whole(name, fields, "qk_rope_head_dim")) * size
    heads = _whole(name, fields, "num_attention_heads")
    kv_heads = _whole(name, fields, "num_key_value_heads") if "num_key_value_heads" in fields else heads
    if fields.get("head_dim"):
        head_dim = _whole(name, fields, "head_dim")
    else:
        head_dim = _whole(name, fields, "hidden_size") // heads
    return 2 * layers * kv_heads * head_dim * size


def chosen(model_config: str | Path | None, kv_bytes: int | None) -> int | None:
    """Bytes a token where a command names a model or the bytes themselves; None where neither, UsageError where both.

    >>> chosen(None, 4096)
    4096
    """
    if model_config is not None and kv_bytes is not None:
        raise UsageError("--model-config and --kv-bytes-per-token say the same. Give one of them.")
    return kv_bytes_per_token(model_config) if model_config is not None else kv_bytes


def _fields(config):
    if isinstance(config, dict):
        name, fields = "model config", config
    else:
        name = str(config)
        try:
            fields = json.loads(Path(config).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror or 'cannot be read'}. Try a model's config.json.") from None
        except ValueError:
            raise InputError(f"{name}: not valid JSON. Try a model's config.json.") from None
    if not isinstance(fields, dict):
        raise InputError(f"{name}: not a JSON object. Try a model's config.json.")
    inner = fields.get("text_config")  # models with images keep the language model's fields there
    return name, inner if isinstance(inner, dict) and "num_hidden_layers" in inner else fields


def _whole(name, fields, field):
    value = fields.get(field)
    if type(value) is not int or value < 1:
        raise InputError(f"{name}: {field} is missing or no whole number. Try --kv-bytes-per-token.")
    return value


def _value_bytes(name, dtype):
    if dtype not in BYTES:
        raise InputError(f"{name}: the dtype is none of {', '.join(BYTES)}. Try --kv-bytes-per-token.")
    return BYTES[dtype]
