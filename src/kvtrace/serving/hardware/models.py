"""A model's shape, from a config.json as Hugging Face repositories have it: what it has to multiply, read and keep.

Counted are the matrices of decoder-only transformers: attention (multi-head, grouped, multi-query, or latent as in
DeepSeek-V2), MLPs (dense, or experts as in Mixtral, Qwen-MoE and DeepSeek), embedding and head. Vectors (norms,
biases) are left out: less than 0.1 %. So are heads that predict further tokens, which serving can do without.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._base.errors import InputError, UsageError
from ..kv_bytes import BYTES, kv_bytes_per_token
from .described import Fields, read_object

WEIGHT_BYTES = {**BYTES, "int4": 0.5, "mxfp4": 17 / 32}  # mxfp4: a scale of one byte for 32 values of half a byte
UNGATED = {"falcon", "gpt_neox", "nemotron", "opt", "phi", "starcoder2"}  # MLPs of two matrices, not three
TIED = ("cohere", "gemma")  # model types whose embedding is the head as well unless the config denies it
# fields of architectures whose layers are not all attention and MLP as counted here
FOREIGN = {"attn_layer_period", "full_attention_interval", "intermediate_size_mlp", "layers_block_type",
           "linear_num_key_heads", "mamba_d_state", "ssm_cfg", "hybrid_override_pattern"}  # fmt: skip
HINT = "Try a model's config.json."


@dataclass(frozen=True)
class ModelShape:
    """The sizes that decide what a model costs to serve; `model_shape` makes it of a config.json."""

    name: str
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys; with latent attention qk_nope_head_dim + qk_rope_head_dim
    value_dim: int  # of values; head_dim but for latent attention
    intermediate: int  # width of a dense layer's MLP
    kv_bytes_per_token: int  # over all layers, as `kvtrace.serving.kv_bytes` has it
    bytes_per_parameter: float
    tied: bool = False  # the embedding is the head as well
    gated: bool = True  # an MLP has three matrices: gate, up, down
    kv_lora_rank: int = 0  # latent attention; 0 = none
    q_lora_rank: int = 0  # 0 = queries are projected at once
    qk_rope_head_dim: int = 0
    moe_layers: int = 0  # layers with experts in place of a dense MLP
    experts: int = 0  # routed ones of such a layer
    experts_per_token: int = 0  # routed ones that a token goes through
    expert_intermediate: int = 0  # width of one
    shared_intermediate: int = 0  # width of those that every token goes through, together

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token goes through, embedding and head among them, as publishers count."""
        return self._parameters(self.experts_per_token)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return round(self.parameters * self.bytes_per_parameter)

    @property
    def flops_per_pair(self) -> int:
        """FLOP of attention for each of the n**2 - p**2 by which a context grows from p to n tokens.

        A query and a key make 2 * head_dim FLOP, weight and value 2 * value_dim, and causally (n**2 - p**2) / 2 pairs
        meet: layers * heads * (head_dim + value_dim), which is 2 * layers * heads * head_dim where both are equal.
        """
        return self.layers * self.heads * (self.head_dim + self.value_dim)

    def _parameters(self, experts):
        matrices = 3 if self.gated else 2
        dense = matrices * self.hidden * self.intermediate
        router = self.hidden * self.experts
        mixed = matrices * self.hidden * (experts * self.expert_intermediate + self.shared_intermediate) + router
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        mlps = (self.layers - self.moe_layers) * dense + self.moe_layers * mixed
        return self.layers * self._attention() + mlps + embeddings

    def _attention(self):
        """Parameters of one layer's attention."""
        queries, out = self.heads * self.head_dim, self.heads * self.value_dim * self.hidden
        if not self.kv_lora_rank:
            return self.hidden * queries + self.hidden * self.kv_heads * (self.head_dim + self.value_dim) + out
        rank = self.q_lora_rank
        query = rank * (self.hidden + queries) if rank else self.hidden * queries
        down = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        up = self.kv_lora_rank * self.heads * (self.head_dim - self.qk_rope_head_dim + self.value_dim)
        return query + down + up + out


def model_shape(
    config: dict[str, Any] | str | Path, *, dtype: str | None = None, kv_dtype: str | None = None
) -> ModelShape:
    """The shape of a config.json's model; `dtype` and `kv_dtype` replace what it says of weights and of KV.

    UsageError where the file is missing or a dtype is none, InputError where a field is missing or wrong, or where
    the layers are of another kind (state space, linear attention).

    >>> llama = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...          "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    >>> shape = model_shape(llama)
    >>> shape.parameters, shape.weight_bytes, shape.kv_bytes_per_token
    (8029995008, 16059990016, 131072)
    """
    fields = _fields(config)
    layers = fields.whole("num_hidden_layers", most=10_000)
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    moe = _experts(fields, layers)
    all_mixed = moe.get("moe_layers") == layers
    model_type = str(fields.values.get("model_type", ""))
    return ModelShape(
        name=fields.name,
        layers=layers,
        hidden=hidden,
        vocabulary=fields.whole("vocab_size"),
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", heads),
        **_head_sizes(fields, hidden, heads),
        intermediate=fields.whole("intermediate_size", 0 if all_mixed else None, least=0 if all_mixed else 1),
        kv_bytes_per_token=_kv_bytes(fields, kv_dtype),
        bytes_per_parameter=_bytes_per_parameter(fields, dtype),
        tied=fields.flag("tie_word_embeddings", model_type.startswith(TIED)),
        gated=model_type not in UNGATED,
        **moe,
    )


def _fields(config):
    if isinstance(config, dict):
        name, values = "model config", config
    elif isinstance(config, (str, Path)):
        name, values = str(config), read_object(config, InputError, HINT)
    else:
        raise UsageError(f"a model is a config or a file. {HINT}")
    inner = values.get("text_config")  # models with images keep the language model's fields there
    if isinstance(inner, dict) and "num_hidden_layers" in inner:
        above = {key: values[key] for key in ("torch_dtype", "dtype", "quantization_config") if key in values}
        values = above | {key: value for key, value in inner.items() if value is not None}
    fields = Fields(name, values)
    if FOREIGN & fields.values.keys():
        raise InputError(f"{name}: some layers are neither attention nor a plain MLP, which is not counted here.")
    return fields


def _head_sizes(fields, hidden, heads):
    if "kv_lora_rank" not in fields:
        head_dim = fields.whole("head_dim", hidden // heads)
        return {"head_dim": head_dim, "value_dim": head_dim}
    rope = fields.whole("qk_rope_head_dim")
    return {
        "head_dim": fields.whole("qk_nope_head_dim") + rope,
        "value_dim": fields.whole("v_head_dim"),
        "kv_lora_rank": fields.whole("kv_lora_rank"),
        "q_lora_rank": fields.whole("q_lora_rank", 0, least=0),
        "qk_rope_head_dim": rope,
    }


def _experts(fields, layers):
    """What a config says of experts, by the names that Mixtral, Qwen-MoE and DeepSeek have for it; {} if none."""
    named = fields.first("n_routed_experts", "num_local_experts", "num_experts")
    if named is None or not fields.whole(named, least=0):
        return {}
    experts = fields.whole(named)
    # Mixtral has no width of its own for experts
    width = fields.whole(fields.first("moe_intermediate_size") or "intermediate_size")
    shared = fields.whole("n_shared_experts", 0, least=0) * width  # DeepSeek; Qwen2-MoE names the width
    return {
        "moe_layers": _moe_layers(fields, layers),
        "experts": experts,
        "experts_per_token": fields.whole("num_experts_per_tok", most=experts),
        "expert_intermediate": width,
        "shared_intermediate": shared or fields.whole("shared_expert_intermediate_size", 0, least=0),
    }


def _moe_layers(fields, layers):
    first = fields.whole("first_k_dense_replace", 0, least=0)  # DeepSeek: so many dense layers, then
    every = fields.whole("moe_layer_freq", 1)  # layers 0, f, 2f, ... have experts
    step = fields.whole("decoder_sparse_step", 1)  # Qwen: layers s - 1, 2s - 1, ... have experts
    dense = fields.values.get("mlp_only_layers", [])  # but for these
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise InputError(f"{fields.name}: mlp_only_layers is no list of whole numbers. {HINT}")
    mixed = {layer for layer in range(first, layers) if layer % every == 0 and (layer + 1) % step == 0}
    return len(mixed - set(dense))


def _kv_bytes(fields, kv_dtype):
    if kv_dtype is not None and (not isinstance(kv_dtype, str) or kv_dtype not in BYTES):
        raise UsageError(f"the KV's dtype is none of {', '.join(BYTES)}.")
    if kv_dtype is None:
        kv_dtype = _config_dtype(fields)
    return kv_bytes_per_token(fields.values, dtype=kv_dtype)


def _bytes_per_parameter(fields, dtype):
    if dtype is not None:
        if not isinstance(dtype, str) or dtype not in WEIGHT_BYTES:
            raise UsageError(f"the weights' dtype is none of {', '.join(WEIGHT_BYTES)}.")
        return WEIGHT_BYTES[dtype]
    quantised = fields.values.get("quantization_config")
    if quantised is None:
        return BYTES[_config_dtype(fields)]
    method, bits = (quantised.get(key) for key in ("quant_method", "bits")) if isinstance(quantised, dict) else (0, 0)
    if method in ("fp8", "mxfp4"):
        return WEIGHT_BYTES[method]
    if method in ("awq", "gptq") and bits in (4, 8):
        return bits / 8
    raise InputError(f"{fields.name}: quantised in a way not known here. Give the weights' dtype.")


def _config_dtype(fields):
    named = fields.values.get("torch_dtype") or fields.values.get("dtype") or "bfloat16"
    if not isinstance(named, str) or named not in BYTES:
        raise InputError(f"{fields.name}: the dtype is none of {', '.join(BYTES)}. Give the weights' and the KV's.")
    return named
