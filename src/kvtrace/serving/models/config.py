"""The fields of a model: those of the catalog by its name, or of its config.json; and what each layer keeps.

catalog.json has one entry a model, with the page that publishes it; docs/serving/models.md says how to add one. Each
error is one line and shows no value.

A schedule is a list with a word for each layer: `full` (attention to all tokens), `window`, `chunk`, `state` (linear
attention, state space or short convolution), `both` (attention and a state side by side) or `none` (only an MLP).
Most families state `layer_types`; others have a field of their own, and the oldest a single number. One rule reads each
field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson

from ..._base.errors import InputError, UsageError
from ..._base.input_files import read_object


@dataclass(frozen=True)
class CatalogEntry:
    """A model as its publisher describes it, and the checkpoints that have its architecture."""

    name: str  # in lower case
    config: Mapping[str, Any]  # fields of its config.json
    sources: tuple[str, ...]  # the address of its config.json, then of pages that state fields of it
    date: str  # the day on which they were read, YYYY-MM-DD
    parameters: float | None = None  # as the publisher states them, in its name or on its page
    active: float | None = None  # parameters that a token uses, likewise
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # Hugging Face id -> a name of QUANTISATIONS, or ""


def _entry(name: str, row: dict[str, Any]) -> CatalogEntry:
    published, checkpoints = row.get("published", {}), row.get("checkpoints", {})
    return CatalogEntry(
        name, row["config"], tuple(row["sources"]), row["date"], published.get("parameters"), published.get("active"),
        checkpoints,
    )  # fmt: skip


_CATALOG: dict[str, Any] = orjson.loads((Path(__file__).parent / "catalog.json").read_bytes())
MODELS = {name: _entry(name, row) for name, row in _CATALOG["models"].items()}
QUANTISATIONS: dict[str, dict[str, Any] | None] = _CATALOG["quantization_configs"]  # of checkpoints; None: none
IDS = {name.lower(): (name, entry) for entry in MODELS.values() for name in entry.checkpoints}  # in lower case


def model_name(text: object) -> str | None:
    """The name of a model of the catalog, or the Hugging Face id of a checkpoint, in any case; None if it is neither.

    An id may lack its organisation, as in logs, if it means one checkpoint. A path that exists is not a name.

    >>> model_name("Llama-3.1-8B"), model_name("config.json")
    ('llama-3.1-8b', None)
    >>> model_name("qwen/qwen3-32b-fp8"), model_name("Qwen3-32B-AWQ")
    ('Qwen/Qwen3-32B-FP8', 'Qwen/Qwen3-32B-AWQ')
    """
    if not isinstance(text, str):
        return None
    wanted = text.lower()
    if wanted in MODELS:
        return wanted
    ids = [IDS[wanted]] if wanted in IDS else [row for name, row in IDS.items() if name.endswith(f"/{wanted}")]
    if len({(entry.name, entry.checkpoints[name]) for name, entry in ids}) != 1 or Path(text).exists():
        return None
    return ids[0][0]


def catalog_entry(name: str) -> CatalogEntry:
    """The entry of a name that `model_name` returns."""
    return MODELS[name] if name in MODELS else IDS[name.lower()][1]


def catalog_config(name: str) -> dict[str, Any]:
    """The fields of a name that `model_name` returns; a checkpoint has the quantization_config of its own."""
    entry = catalog_entry(name)
    own = entry.checkpoints.get(name)
    return dict(entry.config) | ({"quantization_config": QUANTISATIONS[own]} if own else {})


def near_models(text: str) -> list[str]:
    """Up to three names of the catalog that are spelt like a wrong one.

    >>> near_models("Qwen/Qwen3-30B-A3B-Thinking"), near_models("nothing like it")
    (['Qwen/Qwen3-30B-A3B-Thinking-2507', 'qwen3-30b-a3b'], [])
    """
    path, wanted = text.strip("/").lower(), text.rstrip("/").rpartition("/")[2].lower()
    longer = sorted((name for name in IDS if name.startswith(path)), key=len) if "/" in path else []
    ids = [IDS[name][0] for name in (longer or get_close_matches(path, IDS, cutoff=0.85))[:1]]
    inside = sorted((name for name in MODELS if name in wanted), key=len, reverse=True)
    return [*ids, *(inside[:1] or get_close_matches(wanted, MODELS, n=3 - len(ids), cutoff=0.6))]


HINT = "Try a name that kvtrace models lists, or the path of a model's config.json."
LACKS = "The catalog has no more than its KV bytes. Give its config.json, or another name that kvtrace models lists."
OUTER = ("model_type", "torch_dtype", "dtype", "quantization_config", "compression_config", "tie_word_embeddings",
         "vision_config")  # fmt: skip  # beside `text_config`
ALIASES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
           "n_inner": "intermediate_size", "ffn_dim": "intermediate_size"}  # fmt: skip  # GPT-2, OPT
DEFAULTS: dict[str, dict[str, Any]] = {  # model type -> fields that its published config.json leaves out
    "gemma3": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
}


def read_config(config: Mapping[str, Any] | str | Path, hint: str = HINT) -> Fields:
    """The fields of a model by its name, of a model's config.json, or of a dictionary with the same fields.

    A folder stands for the config.json in it, to which a hf_quant_config.json beside it belongs. Models with images
    keep the fields of their language model in `text_config`.
    """
    if isinstance(config, Mapping):
        name, values = "model config", dict(config)
    elif (catalog_name := model_name(config)) is not None:
        name, values, hint = catalog_name, catalog_config(catalog_name), LACKS
    elif isinstance(config, (str, Path)):
        name, values = str(config), _read(Path(config), _meant(str(config)) + hint)
    else:
        raise UsageError(f"A model is a config or a file. {hint}")
    inner = values.get("text_config")
    if isinstance(inner, dict) and ("num_hidden_layers" in inner or "layers_block_type" in inner):
        outer = {key: values[key] for key in OUTER if key in values}
        values = outer | {key: value for key, value in inner.items() if value is not None}
    values = {ALIASES.get(key, key): value for key, value in values.items()}
    if isinstance(kinds := values.get("layers_block_type"), list):  # Nemotron 3 Ultra states no number
        values.setdefault("num_hidden_layers", len(kinds))
    defaults = next((row for kind, row in DEFAULTS.items() if str(values.get("model_type")).startswith(kind)), {})
    return Fields(name, defaults | {key: value for key, value in values.items() if value is not None}, hint)


def _read(path: Path, hint: str) -> dict[str, Any]:
    """A config.json, or that of a folder; modelopt may keep the quantisation in a file beside it."""
    path = path / "config.json" if path.is_dir() else path
    values = read_object(path, InputError, hint)
    beside = path.with_name("hf_quant_config.json")
    if "quantization_config" not in values and beside.is_file():
        values["quantization_config"] = read_object(beside, InputError, hint)
    return values


def _meant(text: str) -> str:
    near = near_models(text)
    return f"Did you mean {' or '.join(near)}? " if near else ""


class Fields:
    """The fields of a description; each read checks the type. InputError names the field, but not its value.

    >>> Fields("config.json", {"num_hidden_layers": 32}).whole("num_hidden_layers")
    32
    """

    name: str
    values: dict[str, Any]

    def __init__(self, name: str, values: Mapping[str, Any], hint: str = HINT):
        # null means that the config lacks the field
        self.name, self.values = name, {key: value for key, value in values.items() if value is not None}
        self.hint = hint

    def __contains__(self, field: str) -> bool:
        return field in self.values

    def whole(self, field: str, default: int | None = None, *, least: int = 1, greatest: int = 10**9) -> int:
        """A whole number from `least` to `greatest`; the default, if there is one, replaces a missing field."""
        return self.checked(field, self.values.get(field, default), least=least, greatest=greatest)

    def checked(self, field: str, value: Any, *, least: int = 1, greatest: int = 10**9) -> int:
        """The value of a field, if it is a whole number from `least` to `greatest`."""
        if type(value) is not int or not least <= value <= greatest:
            fault = "missing" if value is None else f"not a whole number from {least:,} to {greatest:,}"
            raise InputError(f"{self.name}: {field} is {fault}. {self.hint}")
        return value

    def first(self, *fields: str) -> str | None:
        """The first of several alternative names that the description has."""
        return next((field for field in fields if field in self.values), None)

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(field, default)
        if type(value) is not bool:
            raise InputError(f"{self.name}: {field} is neither true nor false. {self.hint}")
        return value


BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1}
KV_BITS = {name: 8 * size for name, size in BYTES.items()} | {"fp4": 4, "int4": 4}  # without the scales of a block


def config_dtype(fields: Fields) -> str:
    """The dtype of a config's weights, bfloat16 where it states none."""
    named = fields.values.get("torch_dtype") or fields.values.get("dtype") or "bfloat16"
    if not isinstance(named, str) or named not in BYTES:
        raise InputError(f"{fields.name}: the dtype is not one of {', '.join(BYTES)}. Give those of weights and KV.")
    return named


def kv_bits(fields: Fields, dtype: str | None) -> int:
    """Bits of one cached value; a dtype that is not a config's own replaces it."""
    if dtype is not None and (not isinstance(dtype, str) or dtype not in KV_BITS):
        raise UsageError(f"The dtype of the KV must be one of {', '.join(KV_BITS)}.")
    return KV_BITS[config_dtype(fields) if dtype is None else dtype]


WORDS = {  # names in `layer_types` and `layers_block_type`
    "full_attention": "full", "attention": "full", "hybrid": "both", "sliding_attention": "window",
    "chunked_attention": "chunk", "linear_attention": "state", "mamba": "state", "conv": "state", "recurrent": "state",
    "minimax_m3_sparse": "full", "deepseek_sparse_attention": "full", "indexed_attention": "full", "mlp": "none",
    "moe": "none",
}  # fmt: skip
LETTERS = {"M": "state", "*": "full", "-": "none", "E": "none"}  # of Nemotron-H
PATTERNS = {"gemma3": 6, "cohere2": 4, "gemma2": 2, "gpt_oss": 2, "gemma4": 6}  # model type: the last of each N is full


def layer_schedule(fields: Fields) -> list[str]:
    """A word for each layer; layers that share the keys and values of earlier ones are left out.

    >>> layer_schedule(Fields("config.json", {"num_hidden_layers": 6, "sliding_window": 8, "model_type": "gemma2"}))
    ['window', 'full', 'window', 'full', 'window', 'full']
    """
    words = all_layers(fields)
    shared = fields.whole("num_kv_shared_layers", 0, least=0, greatest=len(words) - 1)  # the last ones (Gemma 3n and 4)
    return words[: len(words) - shared] + ["none"] * shared


def all_layers(fields: Fields) -> list[str]:
    """A word for each layer, also for those that share keys and values."""
    layers = fields.whole("num_hidden_layers", greatest=10_000)
    rule = next((rule for field, rule in RULES.items() if field in fields), _plain)
    words = rule(fields, layers)
    if len(words) != layers:
        raise InputError(f"{fields.name}: the kinds of {len(words):,} layers are stated, not of {layers:,}.")
    return words


def _types(fields: Fields, layers: int) -> list[str]:
    named = "layer_types" if "layer_types" in fields else "layers_block_type"
    stated = fields.values[named]
    if isinstance(stated, dict):  # a count of each, as the catalog states it where the order is not published
        stated = [name for name in stated for _ in range(fields.checked(named, stated[name], greatest=layers))]
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
    default = next((every for name, every in PATTERNS.items() if model_type.startswith(name)), 0)
    if every := fields.whole("sliding_window_pattern", default, least=0):
        return ["full" if (layer + 1) % every == 0 else "window" for layer in range(layers)]
    first = fields.whole("max_window_layers", 0, least=0)  # Qwen2: the layers below it are full
    return ["full" if layer < first else "window" for layer in range(layers)]


def numbers(fields: Fields, values: Any, field: str) -> list[int]:
    """A list of whole numbers of a config, or of a part of it."""
    listed = values.get(field) if isinstance(values, dict) else None
    if not isinstance(listed, list) or not all(type(value) is int for value in listed):
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
