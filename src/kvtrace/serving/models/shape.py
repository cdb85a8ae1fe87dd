"""The shape of a model, from its config.json: the parameters to multiply and read, and the KV bytes to store.

matrices.py has the matrices of each layer, quantisation.py how a checkpoint stores them. Vectors (norms, biases) are
left out, which are less than 0.1 %, and layers that predict further tokens, which count with a drafter (weights.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import UsageError
from ...cache.layout import LayerKind
from .config import KV_BITS, read_config
from .layers import INDEXED, growing_bytes, head_size, key_value_heads, layer_kinds
from .matrices import head_sizes, layer_rows, model_matrices, query_gate
from .mlps import dense_width, expert_count, expert_width, experts_per_token, is_gated, shared_width
from .quantisation import quantisation
from .weights import weight_sums


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
    fp4: bool = False  # weights, or those of routed experts, are NVFP4 or MXFP4
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
    # sums over matrices.py; a file of costs from before it lacks them (0), and the widths above stand for them
    layer_parameters: int = 0  # of all layers, without routed experts
    layer_bytes: int = 0
    routed_parameters: int = 0  # of all routed experts
    routed_bytes: int = 0
    active_routed_parameters: int = 0  # of these, those that one token uses
    embedding_parameters: int = 0  # embeddings, and a head of its own
    embedding_bytes: int = 0
    stored_head_bytes: int = 0  # of the head, or of the embedding that is the head
    vision_bytes: int = 0  # of what reads images
    pair_width: int = 0  # heads x (key + value) of all layers with attention to all tokens
    window_pair_width: int = 0  # and of those with a window, a chunk or an indexer
    read_width: int = 0  # bytes that attention reads for each token of a context, where `cache` does not say it
    window_read_width: int = 0  # and for each token of a window

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
        if self.read_width or self.window_read_width:
            return self.read_width
        sparse = self.indexer_layers > 0
        kinds = [kind for kind in self.cache if kind.kind == "full" or (kind.kind == "latent" and not sparse)]
        return growing_bytes([*kinds, *(kind for kind in self.cache if kind.indexer and sparse)])

    @property
    def window_read_bytes_per_token(self) -> int:
        """Bytes of KV that attention reads for each token of a window, or of those that an indexer chooses."""
        if self.window_read_width:
            return self.window_read_width
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
        return self._layer_parameters(self.experts) + self._embeddings

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, with embedding and head, as publishers count them."""
        return self._layer_parameters(self.experts_per_token) + self._embeddings

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, with their scales and with what reads images."""
        if self.layer_bytes:
            return self.layer_bytes + self.routed_bytes + self.embedding_bytes + self.vision_bytes
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
        if self.layer_bytes:
            return self.layer_bytes + self.routed_bytes
        return self._bytes(self._layer_parameters(self.experts), self.expert_parameters)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        if self.layer_parameters:
            return self.routed_parameters
        return self.moe_layers * (3 if self.gated else 2) * self.hidden * self.expert_intermediate * self.experts

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts. A step reads those that its tokens use."""
        if self.layer_parameters:
            return self.routed_bytes
        return self._bytes(self.expert_parameters, self.expert_parameters)

    @property
    def stored_bytes(self) -> tuple[float, float]:
        """Mean bytes of a parameter of the layers, without routed experts, and of one of these."""
        if not self.layer_parameters:
            return self.bytes_per_parameter, self.expert_bytes_per_parameter or self.bytes_per_parameter
        dense = self.layer_bytes / self.layer_parameters
        return dense, self.routed_bytes / self.routed_parameters if self.routed_parameters else dense

    @property
    def expert_share(self) -> float:
        """The share of the routed experts that one token uses; 0 without experts."""
        return self.experts_per_token / self.experts if self.experts else 0.0

    @property
    def head_bytes(self) -> int:
        """Bytes of the head, which turns the last hidden state of a request into logits."""
        return self.stored_head_bytes or round(self.vocabulary * self.hidden * self.bytes_per_parameter)

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

    @property
    def flops_per_pair(self) -> int:
        """FLOP of attention per unit of n**2 - p**2, for a context that grows from p to n tokens.

        A query and a key take 2 * head_dim FLOP, a weight and a value 2 * value_dim, and there are (n**2 - p**2) / 2
        causal pairs: layers * heads * (head_dim + value_dim), or 2 * layers * heads * head_dim if both are equal.
        Layers with windows count in `flops_per_window_pair`; an indexer compares a query with all keys.
        """
        indexers = self.indexer_layers * self.indexer_heads * self.indexer_dim
        if self.pair_width or self.window_pair_width:
            return self.pair_width + (0 if self.read_width else indexers)
        layers = self.layers - self.mixer_layers - self.window_layers
        return layers * self.heads * (self.head_dim + self.value_dim) + indexers

    @property
    def flops_per_window_pair(self) -> int:
        """The same for the layers with windows, per unit of `window_squares`."""
        return self.window_pair_width or self.window_layers * self.heads * (self.head_dim + self.value_dim)

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

    @property
    def _embeddings(self):
        return self.embedding_parameters or self.vocabulary * self.hidden * (1 if self.tied else 2)

    def _layer_parameters(self, experts):
        """Parameters of all layers, with `experts` experts in each layer that has some."""
        if self.layer_parameters:
            routed = self.routed_parameters if experts == self.experts else self.active_routed_parameters
            return self.layer_parameters + routed
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
    config: Mapping[str, Any] | str | Path, *, dtype: str | None = None, kv_dtype: str | None = None
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
    fields = read_config(config)
    if kv_dtype is not None and (not isinstance(kv_dtype, str) or kv_dtype not in KV_BITS):
        raise UsageError(f"The dtype of the KV must be one of {', '.join(KV_BITS)}.")
    rules, rows = quantisation(fields, dtype), layer_rows(fields)
    matrices, cache = model_matrices(fields), layer_kinds(config, kv_dtype)
    costs = _attention_costs(fields, rows, cache)
    return ModelShape(
        name=os.path.basename(fields.name),
        layers=len(rows),
        hidden=fields.whole("hidden_size"),
        vocabulary=fields.whole("vocab_size"),
        heads=fields.whole("num_attention_heads"),
        kv_heads=key_value_heads(fields),
        **_head_sizes(fields),
        intermediate=dense_width(fields) if any(row.mlp in ("dense", "both") for row in rows) else 0,
        kv_bytes_per_token=growing_bytes(cache),
        bytes_per_parameter=rules.plain_bytes,
        fp8=rules.is_fp8,
        fp4=rules.is_fp4,
        tied=not matrices.head,
        gated=is_gated(fields),
        query_gate=query_gate(fields),
        **_experts(fields, sum(row.mlp in ("experts", "both") for row in rows)),
        **_mixers(matrices, rows),
        **costs,
        cache=cache,
        **asdict(weight_sums(matrices, rules)),
    )


def _head_sizes(fields):
    if "kv_lora_rank" not in fields:
        head_dim = head_size(fields)
        return {"head_dim": head_dim, "value_dim": fields.whole("v_head_dim", head_dim)}
    rope = fields.whole("qk_rope_head_dim", least=0)
    return {
        "head_dim": fields.whole("qk_nope_head_dim") + rope,
        "value_dim": fields.whole("v_head_dim"),
        "kv_lora_rank": fields.whole("kv_lora_rank"),
        "q_lora_rank": fields.whole("q_lora_rank", 0, least=0),
        "qk_rope_head_dim": rope,
    }


def _attention_costs(fields, rows, cache):
    """Windows, and what attention multiplies and reads, where the widths of one layer do not say it."""
    if "compress_ratios" in fields:
        return _compressed_costs(fields, rows, cache)
    if "index_block_size" in fields:
        return _block_sparse_costs(fields, rows, cache)
    windows = _windows(fields, cache)
    return windows | _pair_widths(fields, rows, bool(windows.get("indexer_layers")))


def _compressed_costs(fields, rows, cache):
    """DeepSeek V4: each layer sees a window of tokens; some see all entries, others those that their indexer chooses.

    Chosen entries count as a window of the tokens that they stand for, and all windows as one of that length.
    """
    width = 2 * fields.whole("num_attention_heads") * fields.whole("head_dim")
    entry = next(kind.token_bytes for kind in cache if kind.kind == "window")
    chosen = [row.ratio for row in rows if row.ratio == INDEXED]
    whole = [row.ratio for row in rows if row.ratio not in (0, INDEXED)]
    topk, window = fields.whole("index_topk"), fields.whole("sliding_window")
    tokens = max(window, topk * INDEXED)
    seen = len(rows) * window + len(chosen) * topk  # entries of all layers that lie in a window
    indexers = sum(kind.bytes_per_token for kind in cache if kind.indexer)
    heads = fields.whole("index_n_heads") * fields.whole("index_head_dim")
    return {
        "window_layers": len(rows),
        "window": tokens,
        "pair_width": sum(width // ratio for ratio in whole) + len(chosen) * heads // INDEXED,
        "window_pair_width": width * seen // tokens,
        "read_width": sum(entry // ratio for ratio in whole) + indexers,
        "window_read_width": entry * seen // tokens,
    }


def _block_sparse_costs(fields, rows, cache):
    """MiniMax M3: an indexer chooses blocks of tokens in some layers; the others see all."""
    sparse, width = sum(row.has_indexer for row in rows), _pair_width(fields, "full")
    full = len(rows) - sparse
    size = next(kind.token_bytes for kind in cache if kind.kind == "full")
    heads = fields.whole("index_n_heads") * fields.whole("index_head_dim")
    return {
        "window_layers": sparse,
        "window": fields.whole("index_topk_blocks") * fields.whole("index_block_size"),
        "pair_width": full * width + sparse * heads,
        "window_pair_width": sparse * width,
        "read_width": full * size + growing_bytes(kind for kind in cache if kind.indexer),
        "window_read_width": sparse * size,
    }


def _pair_widths(fields, rows, has_indexer):
    """Heads x (key + value), of the layers that see all tokens and of those that do not; {} if all are alike."""
    words = [row.word for row in rows if row.word not in ("state", "none")]
    each = {word: _pair_width(fields, word) for word in words}
    if len(set(each.values())) == 1 and len(words) == sum(row.word != "state" for row in rows):
        return {}
    seen = [has_indexer or word in ("window", "chunk") for word in words]  # not all tokens
    widths = [sum(each[word] for word, part in zip(words, seen, strict=True) if part is kind) for kind in (False, True)]
    return {"pair_width": widths[0], "window_pair_width": widths[1]}


def _pair_width(fields, word):
    if "kv_lora_rank" in fields:
        sizes = _head_sizes(fields)
        return fields.whole("num_attention_heads") * (sizes["head_dim"] + sizes["value_dim"])
    heads, _, key, value = head_sizes(fields, word)
    return heads * (key + value)


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


def _mixers(matrices, rows):
    """The layers with a state in place of attention, and the parameters of one."""
    numbers = [number for number, row in enumerate(rows) if row.word == "state"]
    if not numbers:
        return {}
    names = ("linear_attn.", "self_attn.", "mamba.", "mixer.", "conv.")
    parts = [part for part in matrices.layers[numbers[0]] if part.module.startswith(names)]
    return {"mixer_layers": len(numbers), "mixer_parameters": sum(part.parameters for part in parts)}


def _experts(fields, layers):
    """The experts of a config; {} without experts."""
    if not layers:
        return {}
    return {
        "moe_layers": layers,
        "experts": expert_count(fields),
        "experts_per_token": experts_per_token(fields),
        "expert_intermediate": expert_width(fields),
        "shared_intermediate": shared_width(fields),
    }
