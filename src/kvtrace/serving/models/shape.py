"""The shape of a model, from its config.json: the parameters to multiply and read, and the KV bytes to store.

It counts the matrices of decoder-only transformers: attention (multi-head, grouped, multi-query, or latent as in
DeepSeek-V2; over all tokens, a window, a chunk, or those that an indexer chooses), the gated delta nets of Qwen3-Next,
MLPs (dense, or experts as in Mixtral, Qwen-MoE, DeepSeek, gpt-oss and Llama 4), embedding and head. It leaves out
vectors (norms, biases), which are less than 0.1 %, and heads that predict further tokens, which serving does not need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import InputError, UsageError
from ...cache.layout import LayerKind
from .config import BYTES, KV_BITS, WEIGHT_BYTES, config_dtype, numbers, read_config
from .layers import growing_bytes, head_size, key_value_heads, layer_kinds

UNGATED = {"falcon", "gpt_neox", "nemotron", "opt", "phi", "starcoder2"}  # MLPs of two matrices, not three
TIED = ("cohere", "gemma")  # model types whose embedding is also the head, unless the config states otherwise
GATED_QUERIES = ("qwen3_next", "qwen3_5")  # model types whose attention has a gate as wide as its queries
SAMPLER_BYTES = 24  # of a logit, in PyTorch's top-p sampling (vllm/v1/sample/ops/topk_topp_sampler.py)
# fields of layers whose KV bytes are known, and whose products are not modelled
FOREIGN = {"attn_layer_period", "attn_layer_indices", "attn_type_list", "compress_ratios", "conv_L_cache",
           "global_head_dim", "hidden_size_per_layer_input", "hybrid_override_pattern", "index_block_size",
           "layers_block_type", "linear_attn_config", "linear_num_heads", "mamba_d_state", "num_kv_shared_layers",
           "ssm_cfg", "swa_head_dim", "swa_kv_lora_rank", "use_sconv"}  # fmt: skip


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
    kv_bytes_per_token: int  # over all layers, as in layers.py: of windows, while a token is in them
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
    expert_bytes_per_parameter: float = 0.0  # of routed experts; 0 = as the other parameters
    query_gate: bool = False  # attention has a gate as wide as its queries
    window_layers: int = 0  # layers of attention that see at most `window` tokens
    window: int = 0  # the length of a window or chunk, or the tokens that an indexer chooses
    chunked: bool = False  # `window` is a chunk that starts anew, not a window that slides
    mixer_layers: int = 0  # layers with linear attention in place of attention
    mixer_parameters: int = 0  # of one of them
    indexer_layers: int = 0  # layers whose indexer compares a query with all tokens
    indexer_heads: int = 0
    indexer_dim: int = 0
    cache: tuple[LayerKind, ...] = ()  # what its layers keep, by kind; () = attention to all tokens in each layer

    def __post_init__(self) -> None:
        kinds = tuple(LayerKind(**kind) if isinstance(kind, Mapping) else kind for kind in self.cache)
        if not kinds:
            kind = "latent" if self.kv_lora_rank else "full"
            kinds = (LayerKind(kind, self.layers, self.kv_bytes_per_token // self.layers),)
        object.__setattr__(self, "cache", kinds)  # frozen; a file of costs has dicts

    def to_dict(self) -> dict[str, Any]:
        """Its fields, as a file of costs has them; `ModelShape(**fields)` is the same shape."""
        return asdict(self) | {"cache": [asdict(kind) for kind in self.cache]}

    @property
    def state_bytes(self) -> int:
        """Bytes of one request's states: linear attention, state space, convolutions. They do not grow with tokens."""
        return sum(kind.layers * kind.state_bytes for kind in self.cache)

    @property
    def grows_alike(self) -> bool:
        """Whether each token of a context adds the same bytes: no window, chunk or state."""
        return all(kind.kind in ("full", "latent") for kind in self.cache)

    def fetched_bytes(self, tokens: Any) -> Any:
        """Bytes to fetch so that a prefix of some tokens need not be computed: at most a window, and the states.

        >>> model_shape("gpt-oss-20b").fetched_bytes(np.array([100, 1000]))  # 24 and 12 layers of 2048 bytes
        array([ 4915200, 27721728])
        """
        held = [kind for kind in self.cache if kind.kind in ("window", "chunk")]
        rest = growing_bytes(kind for kind in self.cache if kind not in held)
        windows = sum(kind.bytes_per_token * np.minimum(tokens, kind.window) for kind in held)
        return rest * tokens + windows + self.state_bytes

    @property
    def read_bytes_per_token(self) -> int:
        """Bytes of KV that attention reads for each token of a context: without windows and what an indexer leaves."""
        sparse = self.indexer_layers > 0
        kinds = [kind for kind in self.cache if kind.kind == "full" or (kind.kind == "latent" and not sparse)]
        return growing_bytes([*kinds, *(kind for kind in self.cache if kind.indexer and sparse)])

    @property
    def window_read_bytes_per_token(self) -> int:
        """Bytes of KV that attention reads for each token of a window, or of those that an indexer chooses."""
        if self.indexer_layers:
            return growing_bytes(kind for kind in self.cache if kind.kind == "latent" and not kind.indexer)
        return growing_bytes(kind for kind in self.cache if kind.kind in ("window", "chunk"))

    @property
    def window_tokens(self) -> int:
        """Tokens that a window layer reads of a long context: a window, or half a chunk on average."""
        return self.window // 2 if self.chunked else self.window

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
        return self._bytes(self.parameters, self.expert_parameters)

    def _bytes(self, parameters, experts):
        """Bytes of parameters, of which `experts` are those of routed experts."""
        if not self.expert_bytes_per_parameter:
            return round(parameters * self.bytes_per_parameter)
        return round((parameters - experts) * self.bytes_per_parameter + experts * self.expert_bytes_per_parameter)

    @property
    def matrix_parameters(self) -> int:
        """Parameters that each token is multiplied by: the active ones of the layers, without embedding and head."""
        return self._layer_parameters(self.experts_per_token)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the layers' parameters, with all experts."""
        return self._bytes(self._layer_parameters(self.experts), self.expert_parameters)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        return self.moe_layers * (3 if self.gated else 2) * self.hidden * self.expert_intermediate * self.experts

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts. A step reads those that its tokens use."""
        return self._bytes(self.expert_parameters, self.expert_parameters)

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
        A layer with linear attention counts as one with attention.
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
        Layers with windows count in `flops_per_window_pair`; an indexer compares a query with all keys.
        """
        layers = self.layers - self.mixer_layers - self.window_layers
        indexers = self.indexer_layers * self.indexer_heads * self.indexer_dim
        return layers * self.heads * (self.head_dim + self.value_dim) + indexers

    @property
    def flops_per_window_pair(self) -> int:
        """The same for the layers with windows, per unit of `window_squares`."""
        return self.window_layers * self.heads * (self.head_dim + self.value_dim)

    def window_squares(self, tokens: Any) -> Any:
        """n**2 for windows: twice the pairs of a context of n tokens that lie within a window or a chunk.

        >>> model_shape("gpt-oss-20b").window_squares(np.array([100, 128, 129]))
        array([10000, 16384, 16640])
        """
        if not self.window_layers:
            return tokens * 0
        if self.chunked:
            return tokens // self.window * self.window**2 + (tokens % self.window) ** 2
        inside = np.minimum(tokens, self.window)
        return inside**2 + 2 * self.window * (tokens - inside)

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
        attention = (self.layers - self.mixer_layers) * self._attention() + self.indexer_layers * self._indexer()
        return attention + self.mixer_layers * self.mixer_parameters + mlps

    def _indexer(self):
        """Parameters of one indexer: queries from their latent, a key, and a weight for each head."""
        queries = self.q_lora_rank * self.indexer_heads * self.indexer_dim
        return queries + self.hidden * (self.indexer_dim + self.indexer_heads)

    def _attention(self):
        """Parameters of one layer's attention."""
        queries, out = self.heads * self.head_dim, self.heads * self.value_dim * self.hidden
        queries *= 2 if self.query_gate else 1
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
    has layers whose products are not modelled: state space, compressed attention, heads of several sizes.

    >>> llama = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...          "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    >>> shape = model_shape(llama)
    >>> shape.parameters, shape.weight_bytes, shape.kv_bytes_per_token
    (8029995008, 16059990016, 131072)
    >>> model_shape("llama-3.1-8b").parameters
    8029995008
    """
    fields = _fields(config)
    layers = fields.whole("num_hidden_layers", greatest=10_000)
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    moe = _experts(fields, layers)
    all_mixed = moe.get("moe_layers") == layers
    model_type = str(fields.values.get("model_type", ""))
    if kv_dtype is not None and (not isinstance(kv_dtype, str) or kv_dtype not in KV_BITS):
        raise UsageError(f"The dtype of the KV must be one of {', '.join(KV_BITS)}.")
    cache = layer_kinds(config, kv_dtype)
    dense = "intermediate_size_mlp" if "intermediate_size_mlp" in fields else "intermediate_size"
    return ModelShape(
        name=os.path.basename(fields.name),
        layers=layers,
        hidden=hidden,
        vocabulary=fields.whole("vocab_size"),
        heads=heads,
        kv_heads=key_value_heads(fields),
        **_head_sizes(fields),
        intermediate=fields.whole(dense, 0 if all_mixed else None, least=0 if all_mixed else 1),
        kv_bytes_per_token=growing_bytes(cache),
        **_weight_bytes(fields, dtype),
        fp8=_is_fp8(fields, dtype),
        tied=fields.flag("tie_word_embeddings", model_type.startswith(TIED)),
        gated=model_type not in UNGATED,
        query_gate=fields.flag("attn_output_gate", model_type.startswith(GATED_QUERIES)),
        **moe,
        **_windows(fields, cache),
        **_mixers(fields, hidden, cache),
        cache=cache,
    )


def _fields(config):
    fields = read_config(config)
    if foreign := FOREIGN & {name for name, value in fields.values.items() if value not in (0, False)}:
        raise InputError(
            f"{fields.name}: layers with {min(foreign)} have KV bytes, but no times: their products are not modelled."
        )
    return fields


def _head_sizes(fields):
    if "kv_lora_rank" not in fields:
        head_dim = head_size(fields)
        return {"head_dim": head_dim, "value_dim": fields.whole("v_head_dim", head_dim)}
    rope = fields.whole("qk_rope_head_dim")
    return {
        "head_dim": fields.whole("qk_nope_head_dim") + rope,
        "value_dim": fields.whole("v_head_dim"),
        "kv_lora_rank": fields.whole("kv_lora_rank"),
        "q_lora_rank": fields.whole("q_lora_rank", 0, least=0),
        "qk_rope_head_dim": rope,
    }


def _windows(fields, cache):
    """The layers of attention that do not see all tokens, and how many they see."""
    (indexer,) = [kind for kind in cache if kind.indexer] or [None]
    if indexer:
        layers = sum(kind.layers for kind in cache if kind.kind == "latent" and not kind.indexer)
        sizes = {"indexer_heads": fields.whole("index_n_heads"), "indexer_dim": fields.whole("index_head_dim")}
        return {"window_layers": layers, "window": fields.whole("index_topk"), "indexer_layers": indexer.layers} | sizes
    (kind,) = [kind for kind in cache if kind.kind in ("window", "chunk")] or [None]
    if kind is None:
        return {}
    return {"window_layers": kind.layers, "window": kind.window, "chunked": kind.kind == "chunk"}


def _mixers(fields, hidden, cache):
    """The gated delta nets of Qwen3-Next: queries, keys, values and a gate, two numbers a head, a convolution, out."""
    layers = sum(kind.layers for kind in cache if kind.kind == "state")
    if not layers:
        return {}
    keys = fields.whole("linear_num_key_heads") * fields.whole("linear_key_head_dim")
    heads = fields.whole("linear_num_value_heads")
    values = heads * fields.whole("linear_value_head_dim")
    products = hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    convolution = fields.whole("linear_conv_kernel_dim") * (2 * keys + values)
    return {"mixer_layers": layers, "mixer_parameters": products + convolution}


def _experts(fields, layers):
    """The experts of a config, by the field names of Mixtral, Qwen-MoE and DeepSeek; {} without experts."""
    named = fields.first("n_routed_experts", "num_local_experts", "num_experts")
    if named is None or not fields.whole(named, least=0):
        return {}
    experts = fields.whole(named)
    # Mixtral has no separate width for experts
    width = fields.whole(fields.first("moe_intermediate_size") or "intermediate_size")
    shared = fields.whole("n_shared_experts", 0, least=0) * width  # DeepSeek; Qwen2-MoE states the width
    if str(fields.values.get("model_type", "")).startswith("llama4"):
        shared = width
    return {
        "moe_layers": _moe_layers(fields, layers),
        "experts": experts,
        "experts_per_token": fields.whole("num_experts_per_tok", greatest=experts),
        "expert_intermediate": width,
        "shared_intermediate": shared or fields.whole("shared_expert_intermediate_size", 0, least=0),
    }


def _moe_layers(fields, layers):
    first = fields.whole("first_k_dense_replace", 0, least=0)  # DeepSeek: dense layers come first, then
    every = fields.whole("moe_layer_freq", 1)  # layers 0, f, 2f, ... have experts
    step = fields.whole("decoder_sparse_step", 1)  # Qwen: layers s - 1, 2s - 1, ... have experts
    step = fields.whole("interleave_moe_layer_step", step)  # Llama 4, likewise
    dense = numbers(fields, fields.values, "mlp_only_layers") if "mlp_only_layers" in fields else []  # except these
    mixed = {layer for layer in range(first, layers) if layer % every == 0 and (layer + 1) % step == 0}
    return len(mixed - set(dense))


def _weight_bytes(fields, dtype):
    """Bytes of a parameter, and of a routed expert's where they differ."""
    if dtype is not None:
        if not isinstance(dtype, str) or dtype not in WEIGHT_BYTES:
            raise UsageError(f"The dtype of the weights must be one of {', '.join(WEIGHT_BYTES)}.")
        return {"bytes_per_parameter": WEIGHT_BYTES[dtype]}
    quantised = fields.values.get("quantization_config")
    if quantised is None:
        return {"bytes_per_parameter": BYTES[config_dtype(fields)]}
    method, bits = (quantised.get(key) for key in ("quant_method", "bits")) if isinstance(quantised, dict) else (0, 0)
    if method == "mxfp4" and quantised.get("modules_to_not_convert"):  # gpt-oss: the experts alone
        sizes = BYTES[config_dtype(fields)], WEIGHT_BYTES[method]
        return dict(zip(("bytes_per_parameter", "expert_bytes_per_parameter"), sizes, strict=True))
    if method in ("fp8", "mxfp4"):
        return {"bytes_per_parameter": WEIGHT_BYTES[method]}
    if method in ("awq", "gptq") and bits in (4, 8):
        return {"bytes_per_parameter": bits / 8}
    raise InputError(f"{fields.name}: unknown quantisation. Give the dtype of the weights.")


def _is_fp8(fields, dtype):
    """Whether the weights are FP8."""
    quantised = fields.values.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    named = dtype or (method if quantised else config_dtype(fields))
    return isinstance(named, str) and named.startswith(("fp8", "float8"))
