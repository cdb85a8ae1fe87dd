"""What each layer of a model keeps, from the fields by which config.json files state it: one rule for each field.

A schedule is a list with a word for each layer: `full` (attention to all tokens), `window`, `chunk`, `state` (linear
attention, state space or short convolution), `both` (attention and a state side by side) or `none` (only an MLP).
Most families state `layer_types`; others have a field of their own, and the oldest a single number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._base.errors import InputError
from .config import Fields

WORDS = {  # names in `layer_types` and `layers_block_type`
    "full_attention": "full", "attention": "full", "hybrid": "both", "sliding_attention": "window",
    "chunked_attention": "chunk", "linear_attention": "state", "mamba": "state", "conv": "state", "recurrent": "state",
    "minimax_m3_sparse": "full", "mlp": "none", "moe": "none",
}  # fmt: skip
LETTERS = {"M": "state", "*": "full", "-": "none", "E": "none"}  # of Nemotron-H
PATTERNS = {"gemma3": 6, "cohere2": 4, "gemma2": 2, "gpt_oss": 2, "gemma4": 6}  # model type: the last of each N is full


def layer_schedule(fields: Fields) -> list[str]:
    """A word for each layer; layers that share the keys and values of earlier ones are left out.

    >>> layer_schedule(Fields("config.json", {"num_hidden_layers": 6, "sliding_window": 8, "model_type": "gemma2"}))
    ['window', 'full', 'window', 'full', 'window', 'full']
    """
    words = all_layers(fields)
    shared = fields.whole("num_kv_shared_layers", 0, least=0, most=len(words) - 1)  # the last ones (Gemma 3n and 4)
    return words[: len(words) - shared]


def all_layers(fields: Fields) -> list[str]:
    """A word for each layer, also for those that share keys and values."""
    layers = fields.whole("num_hidden_layers", most=10_000)
    rule = next((rule for field, rule in RULES.items() if field in fields), _plain)
    words = rule(fields, layers)
    if len(words) != layers:
        raise InputError(f"{fields.name}: the kinds of {len(words):,} layers are stated, not of {layers:,}.")
    return words


def _types(fields: Fields, layers: int) -> list[str]:
    named = "layer_types" if "layer_types" in fields else "layers_block_type"
    stated = fields.values[named]
    if isinstance(stated, dict):  # a count of each, as the catalog states it where the order is not published
        stated = [name for name in stated for _ in range(fields.checked(named, stated[name], most=layers))]
    if not isinstance(stated, list) or not all(isinstance(name, str) and name in WORDS for name in stated):
        raise InputError(f"{fields.name}: {named} has a kind of layer that is not modelled. Known: {', '.join(WORDS)}.")
    window = fields.whole("sliding_window", 0, least=0) or fields.whole("sliding_window_size", 0, least=0)
    words = [WORDS[name] for name in stated]
    return words if window else ["full" if word == "window" else word for word in words]


def _letters(fields: Fields, layers: int) -> list[str]:
    text = fields.values["hybrid_override_pattern"]
    if not isinstance(text, str) or not set(text) <= LETTERS.keys():
        raise InputError(f"{fields.name}: hybrid_override_pattern has a letter other than {' '.join(LETTERS)}.")
    return [LETTERS[letter] for letter in text]


def _kimi(fields: Fields, layers: int) -> list[str]:
    linear = fields.values["linear_attn_config"]
    full, states = (numbers(fields, linear, name) for name in ("full_attn_layers", "kda_layers"))
    return ["full" if layer in full else "state" for layer in sorted({*full, *states})]  # numbered from 1


def _listed(field: str, word: str, other: str) -> Callable[[Fields, int], list[str]]:
    """The layers whose numbers, from 0, are listed keep `word`."""

    def rule(fields: Fields, layers: int) -> list[str]:
        listed = numbers(fields, fields.values, field)
        return [word if layer in listed else other for layer in range(layers)]

    return rule


def _flags(field: str, set_word: str, other: str) -> Callable[[Fields, int], list[str]]:
    """A list of 0 and 1, one for each layer."""

    def rule(fields: Fields, layers: int) -> list[str]:
        flags = numbers(fields, fields.values, field)
        return [set_word if flag else other for flag in flags]

    return rule


def _chunks(fields: Fields, layers: int) -> list[str]:
    """Llama 4: layers with a rotation attend within their chunk; every fourth has none, unless listed."""
    if fields.values.get("no_rope_layers"):
        return _flags("no_rope_layers", "chunk", "full")(fields, layers)
    every = fields.whole("no_rope_layer_interval", 4)
    return ["full" if (layer + 1) % every == 0 else "chunk" for layer in range(layers)]


def _jamba(fields: Fields, layers: int) -> list[str]:
    period, offset = fields.whole("attn_layer_period"), fields.whole("attn_layer_offset", 0, least=0)
    return ["full" if layer % period == offset else "state" for layer in range(layers)]


def _interval(fields: Fields, layers: int) -> list[str]:
    every = fields.whole("full_attention_interval")
    return ["full" if (layer + 1) % every == 0 else "state" for layer in range(layers)]


def _plain(fields: Fields, layers: int) -> list[str]:
    """Attention everywhere: full, or over a sliding window where the config has one and uses it."""
    model_type = str(fields.values.get("model_type", ""))
    if model_type == "falcon_h1":
        return ["both"] * layers
    if "sliding_window" not in fields or fields.values.get("use_sliding_window") is False:
        return ["full"] * layers
    known = next((every for name, every in PATTERNS.items() if model_type.startswith(name)), 0)
    if every := fields.whole("sliding_window_pattern", known, least=0):
        return ["full" if (layer + 1) % every == 0 else "window" for layer in range(layers)]
    first = fields.whole("max_window_layers", 0, least=0)  # Qwen2: the layers below it are full
    return ["full" if layer < first else "window" for layer in range(layers)]


def numbers(fields: Fields, values: Any, field: str) -> list[int]:
    """A list of whole numbers of a config, or of a part of it."""
    listed = values.get(field) if isinstance(values, dict) else None
    if not isinstance(listed, list) or not all(type(one) is int for one in listed):
        raise InputError(f"{fields.name}: {field} is not a list of whole numbers. {fields.hint}")
    return listed


RULES: dict[str, Callable[[Fields, int], list[str]]] = {  # the first field that a config has decides
    "layer_types": _types,
    "layers_block_type": _types,
    "hybrid_override_pattern": _letters,
    "linear_attn_config": _kimi,
    "hybrid_layer_pattern": _flags("hybrid_layer_pattern", "window", "full"),  # MiMo
    "attn_type_list": _flags("attn_type_list", "full", "state"),  # MiniMax-01
    "attn_layer_indices": _listed("attn_layer_indices", "full", "state"),  # Bamba
    "full_attn_idxs": _listed("full_attn_idxs", "full", "state"),  # LFM2
    "local_layer_ids": _listed("local_layer_ids", "window", "full"),  # Inkling
    "attention_chunk_size": _chunks,
    "attn_layer_period": _jamba,
    "full_attention_interval": _interval,
}
