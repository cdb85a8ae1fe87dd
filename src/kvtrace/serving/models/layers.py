"""The layers of a model by kind, from its config.json: what each keeps of a token, a window or a whole prefix.

layer_schedule.py, attention_sizes.py and state_sizes.py read the fields of each family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..._base.errors import InputError
from ...cache.layout import LayerKind
from .attention_sizes import cached_values, indexer_layers, is_latent
from .compressed import compressed_kinds
from .config import Fields, read_config
from .dtypes import BYTES, config_dtype, kv_bits
from .layer_schedule import layer_schedule
from .state_sizes import state_bytes

UNKNOWN = ("ssm_cfg", "state_size")  # Mamba without attention: nothing to share by prefix


def layer_kinds(
    config: Mapping[str, Any] | str | Path,
    dtype: str | None = None,
    *,
    indexer_dtype: str | None = None,
    state_dtype: str | None = None,
    draft: bool = False,
) -> tuple[LayerKind, ...]:
    """What the layers of a model keep, by kind.

    Args:
        config: A name of the catalog, the path of a config.json, or its fields.
        dtype: Of keys and values; by default that of the weights. 4 bits are counted without their scales.
        indexer_dtype: Of the keys of an indexer; by default that of keys and values.
        state_dtype: Of recurrent states; by default what the config states, else as vLLM chooses.
        draft: Count the layers that predict further tokens, too.

    Raises:
        UsageError: The file is missing, or a dtype is unknown.
        InputError: A field is missing or wrong, or a kind of layer is not modelled; it names the field.

    >>> for kind in layer_kinds("gpt-oss-20b"):
    ...     print(kind.kind, kind.layers, kind.token_bytes, kind.window)
    full 12 2048 0
    window 12 2048 128
    """
    fields = read_config(config)
    bits = kv_bits(fields, dtype)
    indexer_bits = kv_bits(fields, indexer_dtype) if indexer_dtype is not None else bits
    if "compress_ratios" in fields:
        return tuple(compressed_kinds(fields, bits, indexer_bits, draft=draft))
    if unknown := fields.first(*UNKNOWN):
        raise InputError(f"{fields.name}: {unknown} is not modelled: no layer has attention.")
    counts = Counter(layer_schedule(fields))
    counts["full"] += counts["both"]
    counts["state"] += counts["both"]
    added = draft_layers(fields) if draft else 0
    kinds = [*_attention(fields, counts, bits, added), *_indexers(fields, counts, indexer_bits, added)]
    if counts["state"]:
        kinds.append(LayerKind("state", counts["state"], state_bytes=state_bytes(fields, state_dtype)))
    return tuple([*kinds, *_short_convolutions(fields, counts)])


def cache_bytes(kinds: Iterable[LayerKind], tokens: int, *, states: bool = True) -> int:
    """Bytes that one request of `tokens` tokens keeps: windows hold at most their length, states their size.

    >>> cache_bytes(layer_kinds("gpt-oss-20b"), 1000)  # 12 x 2048 bytes of 1,000 tokens and of 128
    27721728
    """
    return sum(_bytes_of(kind, tokens, states) for kind in kinds)


def _bytes_of(kind: LayerKind, tokens: int, states: bool) -> int:
    if kind.kind == "state":
        return kind.layers * kind.state_bytes if states else 0
    held = min(tokens, kind.window) if kind.window else tokens // kind.tokens_per_entry
    return kind.layers * kind.token_bytes * held


def growing_bytes(kinds: Iterable[LayerKind]) -> int:
    """Bytes of one token in all layers that keep tokens; those of windows leave when the window has passed.

    Layers that keep an entry for several tokens count for their share of it, rounded down.
    """
    return sum(kind.bytes_per_token for kind in kinds if kind.kind != "state")


def draft_layers(fields: Fields) -> int:
    """Layers of attention that predict further tokens; InputError where a config does not state their kind."""
    added = fields.whole("num_nextn_predict_layers", 0, least=0) or fields.whole("mtp_num_hidden_layers", 0, least=0)
    if not added and fields.values.get("use_mtp") is True:
        added = fields.whole("num_mtp_modules", 0, least=0) * fields.whole("mtp_transformer_layers", 1)
    return added


def _attention(fields, counts, bits, added):
    """The layers of attention, full ones first."""
    kinds = []
    if layers := counts["full"] + added:
        size = cached_values(fields) * bits // 8
        kinds.append(LayerKind("latent" if is_latent(fields) else "full", layers, size))
    if counts["window"]:
        window = fields.first("sliding_window", "sliding_window_size")
        size = cached_values(fields, is_window=True) * bits // 8
        kinds.append(LayerKind("window", counts["window"], size, window=fields.whole(window or "sliding_window")))
    if counts["chunk"]:
        size = cached_values(fields) * bits // 8
        kinds.append(LayerKind("chunk", counts["chunk"], size, window=fields.whole("attention_chunk_size")))
    return kinds


def _indexers(fields, counts, bits, added):
    """The keys of indexers, which choose the tokens that sparse attention sees (DeepSeek V3.2 and later)."""
    if "index_head_dim" not in fields:
        return []
    layers = indexer_layers(fields, counts["full"]) + added
    size = fields.whole("index_head_dim") * bits // 8
    return [LayerKind("latent", layers, size, tokens_per_entry=fields.whole("index_kpool", 1), indexer=True)]


def _short_convolutions(fields, counts):
    """Inkling: each layer also keeps past inputs of four convolutions: of keys, values, and two of the hidden width."""
    if fields.values.get("use_sconv") is not True:
        return []
    past, wide = fields.whole("sconv_kernel_size", 4) - 1, 2 * fields.whole("hidden_size")
    size = BYTES[config_dtype(fields)]
    return [
        LayerKind("state", counts[word], state_bytes=past * (wide + cached_values(fields, is_window=is_window)) * size)
        for word, is_window in (("full", False), ("window", True))
        if counts[word]
    ]
