"""Models of 1 to 8 billion random weights in the shapes of Llama 3, and a tiny one for a CPU."""

from __future__ import annotations

from typing import Any

from experiments.model import Shape

VOCABULARY = 128_256
SIZES = {
    "tiny": Shape(layers=4, heads=8, head_dim=32, vocabulary=2048, kv_heads=4, intermediate=1024),
    "1b": Shape(layers=16, heads=32, head_dim=64, vocabulary=VOCABULARY, kv_heads=8, intermediate=8192),
    "3b": Shape(layers=28, heads=24, head_dim=128, vocabulary=VOCABULARY, kv_heads=8, intermediate=8192),
    "8b": Shape(layers=32, heads=32, head_dim=128, vocabulary=VOCABULARY, kv_heads=8, intermediate=14336),
}


def config_of(shape: Shape, dtype: str) -> dict[str, Any]:
    """The fields of a config.json. The head is a matrix of its own, also where Llama's is its embedding.

    >>> config_of(SIZES["8b"], "bfloat16")["hidden_size"]
    4096
    """
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": dtype,
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary, "tie_word_embeddings": False,
    }  # fmt: skip
