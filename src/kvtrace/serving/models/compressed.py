"""Compressed attention of DeepSeek V4: a window of recent tokens, and one entry for every 2, 4 or 128 older ones.

`compress_ratios` states for each layer how many tokens an entry stands for; 0 is a layer with a window alone, and rows
beyond the layers are the draft's. In V4.1 only the layers of `kv_source_layer_ids` keep entries and an indexer's keys.
"""

from __future__ import annotations

from collections import Counter

from ...cache.layout import LayerKind
from .config import Fields
from .layer_schedule import numbers

INDEXED = 4  # V4's ratio of the layers with an indexer


def compressed_kinds(fields: Fields, value_bits: int, indexer_bits: int, *, draft: bool) -> list[LayerKind]:
    """The windows, entries and indexers of such a model."""
    layers = fields.whole("num_hidden_layers", most=10_000)
    ratios = numbers(fields, fields.values, "compress_ratios")
    sources = numbers(fields, fields.values, "kv_source_layer_ids") if "kv_source_layer_ids" in fields else None
    ratios = ratios if draft else ratios[:layers]
    entry = fields.whole("head_dim") * value_bits // 8
    key = fields.whole("index_head_dim") * indexer_bits // 8
    kinds = [LayerKind("window", len(ratios), entry, window=fields.whole("sliding_window"))]
    kept = Counter(ratio for layer, ratio in enumerate(ratios) if ratio and (sources is None or layer in sources))
    kinds += [LayerKind("latent", kept[ratio], entry, tokens_per_entry=ratio) for ratio in sorted(kept)]
    indexed = {ratio: kept[ratio] for ratio in sorted(kept) if sources is not None or ratio == INDEXED}
    kinds += [LayerKind("latent", indexed[ratio], key, tokens_per_entry=ratio, indexer=True) for ratio in indexed]
    return kinds
