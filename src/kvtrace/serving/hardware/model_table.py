"""Models by name: the fields of their config.json that decide memory and time, as the publishers state them."""

from __future__ import annotations

from typing import Any

_BF16: dict[str, Any] = {"tie_word_embeddings": False, "torch_dtype": "bfloat16"}
_LLAMA: dict[str, Any] = _BF16 | {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256}

MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA | {
        "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    },
    "llama-3-70b": _LLAMA | {
        "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    },
    "mixtral-8x7b": _BF16 | {
        "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 32000,
    },
    "qwen3-30b-a3b": _BF16 | {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936,
    },
    "deepseek-v3": _BF16 | {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
        "moe_layer_freq": 1, "vocab_size": 129280, "quantization_config": {"quant_method": "fp8"},
    },
}  # fmt: skip


def model_name(text: object) -> str | None:
    """The name of a row of MODELS, in any case; None if the text is not one.

    >>> model_name("Llama-3.1-8B"), model_name("config.json")
    ('llama-3.1-8b', None)
    """
    return text.lower() if isinstance(text, str) and text.lower() in MODELS else None
