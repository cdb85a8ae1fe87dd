"""The shape of a model, from its config.json: the parameters to multiply and read, and the KV bytes to store.

It counts the matrices of decoder-only transformers: attention (multi-head, grouped, multi-query, or latent as in
DeepSeek-V2), MLPs (dense, or experts as in Mixtral, Qwen-MoE and DeepSeek), embedding and head. It leaves out vectors
(norms, biases), which are less than 0.1 %, and heads that predict further tokens, which serving does not need.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._base.errors import InputError, UsageError
from .described import HINT, read_config
from .kv_bytes import BYTES, kv_bytes_per_token

WEIGHT_BYTES = {**BYTES, "int4": 0.5, "mxfp4": 17 / 32}  # mxfp4: one byte of scale per 32 values of half a byte
UNGATED = {"falcon", "gpt_neox", "nemotron", "opt", "phi", "starcoder2"}  # MLPs of two matrices, not three
TIED = ("cohere", "gemma")  # model types whose embedding is also the head, unless the config states otherwise
SAMPLER_BYTES = 24  # of a logit, in PyTorch's top-p sampling (vllm/v1/sample/ops/topk_topp_sampler.py)
# fields of architectures with other layers than attention and MLP
FOREIGN = {"attn_layer_period", "full_attention_interval", "intermediate_size_mlp", "layers_block_type",
           "linear_num_key_heads", "mamba_d_state", "ssm_cfg", "hybrid_override_pattern"}  # fmt: skip


@dataclass(frozen=True)
class ModelShape:
    """The sizes that decide the cost of serving a model; `model_shape` reads them from a config.json."""

    name: str
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys; with latent attention qk_nope_head_dim + qk_rope_head_dim
    value_dim: int  # of values; equal to head_dim except for latent attention
    intermediate: int  # width of a dense layer's MLP
    kv_bytes_per_token: int  # over all layers, as in kv_bytes.py
    bytes_per_parameter: float
    tied: bool = False  # the embedding is also the head
    gated: bool = True  # an MLP has three matrices: gate, up, down
    kv_lora_rank: int = 0  # latent attention; 0 = none
    q_lora_rank: int = 0  # 0 = queries have a single projection
    qk_rope_head_dim: int = 0
    moe_layers: int = 0  # layers with experts instead of a dense MLP
    experts: int = 0  # routed experts of such a layer
    experts_per_token: int = 0  # routed experts per token
    expert_intermediate: int = 0  # width of one expert
    shared_intermediate: int = 0  # total width of the experts that every token passes
    fp8: bool = False  # the weights are FP8, so that GPUs which can multiply in FP8 do

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, with embedding and head, as publishers count them."""
        return self._parameters(self.experts_per_token)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return round(self.parameters * self.bytes_per_parameter)

    @property
    def matrix_parameters(self) -> int:
        """Parameters that each token is multiplied by: the active ones of the layers, without embedding and head."""
        return self._layer_parameters(self.experts_per_token)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the layers' parameters, with all experts."""
        return round(self._layer_parameters(self.experts) * self.bytes_per_parameter)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        return self.moe_layers * (3 if self.gated else 2) * self.hidden * self.expert_intermediate * self.experts

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts. A step reads those that its tokens use."""
        return round(self.expert_parameters * self.bytes_per_parameter)

    @property
    def expert_share(self) -> float:
        """The share of the routed experts that one token uses; 0 without experts."""
        return self.experts_per_token / self.experts if self.experts else 0.0

    @property
    def head_bytes(self) -> int:
        """Bytes of the head, which turns the last hidden state of a request into logits."""
        return round(self.vocabulary * self.hidden * self.bytes_per_parameter)

    @property
    def activation_bytes_per_token(self) -> int:
        """Bytes that the kernels between the products read and write per token, in 16 bits.

        Each of two norms reads and writes the hidden state and the residual; the rotation reads and writes queries and
        keys; the copy into the cache reads and writes keys and values; the activation reads gate and up, and writes.
        """
        cached = self.kv_lora_rank + self.qk_rope_head_dim or 2 * self.kv_heads * self.head_dim  # keys and values
        attention = 8 * self.hidden + 2 * self.heads * self.head_dim + 3 * cached
        mixed = self.experts_per_token * self.expert_intermediate + self.shared_intermediate
        widths = (self.layers - self.moe_layers) * self.intermediate + self.moe_layers * mixed
        return 2 * (self.layers * attention + (3 if self.gated else 2) * widths)

    def workspace_bytes(self, step_tokens: int, requests: int, gpus: int = 1) -> int:
        """The peak of activations on each GPU, as vLLM measures it before it sizes the cache: the larger of two.

        The MLP of a full step holds the hidden state, the residual, gate, up and their product in 16 bits. The sampler
        holds, per logit of each request, the logit, its sorted copy, its probability and their sum in 32 bits, and its
        place in 64 bits.

        >>> round(model_shape("llama-3.1-8b").workspace_bytes(2048, 128) / 1e6)
        394
        """
        width = self.experts_per_token * self.expert_intermediate + self.shared_intermediate
        widest = max(self.intermediate if self.moe_layers < self.layers else 0, width)
        mlp = 2 * step_tokens * (2 * self.hidden + (3 if self.gated else 2) * widest // gpus)
        return max(mlp, SAMPLER_BYTES * requests * self.vocabulary)

    @property
    def flops_per_pair(self) -> int:
        """FLOP of attention per unit of n**2 - p**2, for a context that grows from p to n tokens.

        A query and a key take 2 * head_dim FLOP, a weight and a value 2 * value_dim, and there are (n**2 - p**2) / 2
        causal pairs: layers * heads * (head_dim + value_dim), or 2 * layers * heads * head_dim if both are equal.
        """
        return self.layers * self.heads * (self.head_dim + self.value_dim)

    def _parameters(self, experts):
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self._layer_parameters(experts) + embeddings

    def _layer_parameters(self, experts):
        """Parameters of all layers, with `experts` experts in each layer that has some."""
        matrices = 3 if self.gated else 2
        dense = matrices * self.hidden * self.intermediate
        router = self.hidden * self.experts
        mixed = matrices * self.hidden * (experts * self.expert_intermediate + self.shared_intermediate) + router
        mlps = (self.layers - self.moe_layers) * dense + self.moe_layers * mixed
        return self.layers * self._attention() + mlps

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
    """Read the shape of a model, by name or from its config.json; `dtype`, `kv_dtype` replace those of weights and KV.

    UsageError if the file is missing or a dtype is unknown. InputError if a field is missing or wrong, or if the model
    has other layers (state space, linear attention).

    >>> llama = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...          "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    >>> shape = model_shape(llama)
    >>> shape.parameters, shape.weight_bytes, shape.kv_bytes_per_token
    (8029995008, 16059990016, 131072)
    >>> model_shape("llama-3.1-8b").parameters
    8029995008
    """
    fields = _fields(config)
    layers = fields.whole("num_hidden_layers", most=10_000)
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    moe = _experts(fields, layers)
    all_mixed = moe.get("moe_layers") == layers
    model_type = str(fields.values.get("model_type", ""))
    return ModelShape(
        name=os.path.basename(fields.name),
        layers=layers,
        hidden=hidden,
        vocabulary=fields.whole("vocab_size"),
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", heads),
        **_head_sizes(fields, hidden, heads),
        intermediate=fields.whole("intermediate_size", 0 if all_mixed else None, least=0 if all_mixed else 1),
        kv_bytes_per_token=_kv_bytes(fields, kv_dtype),
        bytes_per_parameter=_bytes_per_parameter(fields, dtype),
        fp8=_is_fp8(fields, dtype),
        tied=fields.flag("tie_word_embeddings", model_type.startswith(TIED)),
        gated=model_type not in UNGATED,
        **moe,
    )


def _fields(config):
    fields = read_config(config)
    if FOREIGN & fields.values.keys():
        raise InputError(f"{fields.name}: some layers are neither attention nor a plain MLP; they are not modelled.")
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
    """The experts of a config, by the field names of Mixtral, Qwen-MoE and DeepSeek; {} without experts."""
    named = fields.first("n_routed_experts", "num_local_experts", "num_experts")
    if named is None or not fields.whole(named, least=0):
        return {}
    experts = fields.whole(named)
    # Mixtral has no separate width for experts
    width = fields.whole(fields.first("moe_intermediate_size") or "intermediate_size")
    shared = fields.whole("n_shared_experts", 0, least=0) * width  # DeepSeek; Qwen2-MoE states the width
    return {
        "moe_layers": _moe_layers(fields, layers),
        "experts": experts,
        "experts_per_token": fields.whole("num_experts_per_tok", most=experts),
        "expert_intermediate": width,
        "shared_intermediate": shared or fields.whole("shared_expert_intermediate_size", 0, least=0),
    }


def _moe_layers(fields, layers):
    first = fields.whole("first_k_dense_replace", 0, least=0)  # DeepSeek: dense layers come first, then
    every = fields.whole("moe_layer_freq", 1)  # layers 0, f, 2f, ... have experts
    step = fields.whole("decoder_sparse_step", 1)  # Qwen: layers s - 1, 2s - 1, ... have experts
    dense = fields.values.get("mlp_only_layers", [])  # except these
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise InputError(f"{fields.name}: mlp_only_layers is not a list of whole numbers. {HINT}")
    mixed = {layer for layer in range(first, layers) if layer % every == 0 and (layer + 1) % step == 0}
    return len(mixed - set(dense))


def _kv_bytes(fields, kv_dtype):
    if kv_dtype is not None and (not isinstance(kv_dtype, str) or kv_dtype not in BYTES):
        raise UsageError(f"The dtype of the KV must be one of {', '.join(BYTES)}.")
    if kv_dtype is None:
        kv_dtype = _config_dtype(fields)
    return kv_bytes_per_token(fields.values, dtype=kv_dtype)


def _bytes_per_parameter(fields, dtype):
    if dtype is not None:
        if not isinstance(dtype, str) or dtype not in WEIGHT_BYTES:
            raise UsageError(f"The dtype of the weights must be one of {', '.join(WEIGHT_BYTES)}.")
        return WEIGHT_BYTES[dtype]
    quantised = fields.values.get("quantization_config")
    if quantised is None:
        return BYTES[_config_dtype(fields)]
    method, bits = (quantised.get(key) for key in ("quant_method", "bits")) if isinstance(quantised, dict) else (0, 0)
    if method in ("fp8", "mxfp4"):
        return WEIGHT_BYTES[method]
    if method in ("awq", "gptq") and bits in (4, 8):
        return bits / 8
    raise InputError(f"{fields.name}: unknown quantisation. Give the dtype of the weights.")


def _is_fp8(fields, dtype):
    """Whether the weights are FP8."""
    quantised = fields.values.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    named = dtype or (method if quantised else _config_dtype(fields))
    return isinstance(named, str) and named.startswith(("fp8", "float8"))


def _config_dtype(fields):
    named = fields.values.get("torch_dtype") or fields.values.get("dtype") or "bfloat16"
    if not isinstance(named, str) or named not in BYTES:
        raise InputError(f"{fields.name}: the dtype is not one of {', '.join(BYTES)}. Give those of weights and KV.")
    return named
