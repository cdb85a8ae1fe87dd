"""How a checkpoint stores each matrix: the rules of its quantization_config, or of a dtype that replaces them.

Methods: compressed-tensors (groups of targets, an ignore list), modelopt (FP8, NVFP4, mixed), fp8 (of a tensor or of
blocks), mxfp4 (experts alone), awq, gptq, auto-round, bitsandbytes, fbgemm_fp8, quark. Scales and zero points count. In
the model's own dtype stay embeddings, the head (modelopt may quantise it), routers, convolutions, images, and what an
ignore list names; vLLM leaves them so (model_executor/layers/quantization).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate
from math import ceil, gcd
from typing import Any

from ..._base.errors import InputError, UsageError
from .config import BYTES, Fields, config_dtype
from .mlps import Matrix

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "backbone.")
SAME_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "ffn": "mlp", "block_sparse_moe": "mlp",
              "feed_forward": "mlp", "share_expert": "shared_experts", "shared_expert": "shared_experts",
              "head": "lm_head"}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """How a quantised matrix is stored.

    >>> Storage(4, (1, 128), 2).size(256, 512)  # half a byte each, and a scale of 2 bytes for 128 inputs of an output
    67584
    """

    bits: int  # of a weight
    group: tuple[int, int] = (0, 0)  # outputs and inputs that share a scale; 0 = all of them
    scale_bytes: float = 4.0  # of a scale, with its zero point
    is_float: bool = False  # FP8, which GPUs may multiply as it is

    def size(self, outputs: int, inputs: int) -> int:
        """Bytes of a matrix of this size."""
        rows, columns = (part or size for part, size in zip(self.group, (outputs, inputs), strict=True))
        if min(self.group) > 1 and (outputs % rows or inputs % columns):  # a block that a GPU's part cuts gets smaller
            rows = columns = gcd(rows, columns, outputs, inputs)
        scales = ceil(outputs / rows) * ceil(inputs / columns)
        return ceil(outputs * inputs * self.bits / 8 + scales * self.scale_bytes)


FP8_TENSOR, FP8_CHANNEL = Storage(8, is_float=True), Storage(8, (1, 0), is_float=True)
INT8_TENSOR, INT8_CHANNEL = Storage(8), Storage(8, (1, 0))
NVFP4, MXFP4, MXFP8 = Storage(4, (1, 16), 1.0), Storage(4, (1, 32), 1.0), Storage(8, (1, 32), 1.0, is_float=True)
BITSANDBYTES = {4: Storage(4, (1, 64), 4.0), 8: INT8_CHANNEL}


class Names:
    """Modules of a checkpoint by name: parts of a path (`mlp.gate`), globs (`*self_attn*`), or `re:` and a pattern.

    >>> Names(["model.layers.3.mlp", "re:.*lm_head"]).match("layers.3.mlp.up_proj")
    True
    """

    def __init__(self, names: Iterable[str]):
        stated = list(names)
        patterns = [name[3:] for name in stated if name.startswith("re:")]
        globs = [translate(_plain(name)) for name in stated if _is_pattern(name) and not name.startswith("re:")]
        self.parts = {_plain(name) for name in stated if not _is_pattern(name)}
        self._expression, self._glob = _any_of(patterns), _any_of(globs)

    def match(self, module: str) -> bool:
        """Whether one of them names a module, or what it is a part of."""
        plain = _plain(module)
        path = plain.split(".")
        runs = (".".join(path[first:last]) for first in range(len(path)) for last in range(first + 1, len(path) + 1))
        if self.parts and any(run in self.parts for run in runs):
            return True
        if self._glob and (self._glob.match(plain) or self._glob.match(f"model.{plain}")):
            return True
        names = (module, *(prefix + module for prefix in PREFIXES))
        return self._expression is not None and any(self._expression.match(name) for name in names)


def _any_of(patterns: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{part})" for part in patterns)) if patterns else None


def _is_pattern(name: str) -> bool:
    return name.startswith("re:") or "*" in name or "?" in name


def _plain(name: str) -> str:
    """A module's name without what leads to the layers, and with one word for names that mean the same."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return ".".join(SAME_NAMES.get(part, part) for part in name.split("."))


@dataclass(frozen=True)
class Quantisation:
    """The rules of a checkpoint; the first that names a matrix decides."""

    plain_bytes: int  # of a parameter that is not quantised
    default: Storage | None = None  # of the products that no rule names
    skipped: Names | None = None  # what stays as it is
    named: tuple[tuple[Names, Storage | None], ...] = ()
    experts: Storage | None = None  # of routed experts, if it is another one
    takes_head: bool = False  # the head counts as a product
    expert_multiple: int = 1  # a GPU's part of an expert is as wide as a multiple of it

    def storage(self, module: str, matrix: Matrix) -> Storage | None:
        """How a module is stored; None: as it is."""
        if not (matrix.is_linear or (self.takes_head and module == "lm_head")):
            return None
        if self.skipped is not None and self.skipped.match(module):
            return None
        named = next((storage for names, storage in self.named if names.match(module)), self)
        if not isinstance(named, Quantisation):
            return named
        return self.experts if matrix.experts and self.experts else self.default

    @property
    def is_fp8(self) -> bool:
        """Whether most products read FP8, which GPUs may multiply as it is."""
        return self.default is not None and self.default.is_float

    @property
    def is_fp4(self) -> bool:
        """Whether products, or those of routed experts, read NVFP4 or MXFP4, which some GPUs multiply as it is."""
        return self.default in (NVFP4, MXFP4) or self.experts in (NVFP4, MXFP4)


DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
STORED: dict[str, dict[str, Any]] = {  # name of --weights-dtype -> the quantization_config that it stands for
    "fp8": {"quant_method": "fp8"},
    "int8": {"quant_method": "int8"},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "mxfp4": {"quant_method": "mxfp4"},
    "mxfp8": {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}
WEIGHTS = (*BYTES, *DTYPES, *(name for name in STORED if name not in BYTES))  # names of --weights-dtype


def quantisation(fields: Fields, dtype: str | None = None) -> Quantisation:
    """The rules of a config, or of a dtype that replaces its own.

    Raises:
        UsageError: The dtype is not known.
        InputError: The config's own method is not modelled.

    >>> quantisation(Fields("config.json", {"torch_dtype": "bfloat16"})).plain_bytes
    2
    """
    stated = fields.values.get("quantization_config", fields.values.get("compression_config"))
    plain = BYTES[config_dtype(fields)]
    if dtype is not None and dtype != "auto":
        if not isinstance(dtype, str) or dtype.lower() not in WEIGHTS:
            raise UsageError(f"The dtype of the weights must be one of {', '.join(WEIGHTS)}.")
        name = DTYPES.get(dtype.lower(), dtype.lower())
        if name in STORED:
            stated = STORED[name]
        else:
            plain, stated = BYTES[name], None
    if stated is None:
        return Quantisation(plain)
    if isinstance(stated, dict):
        own = Fields(f"{fields.name}: quantization_config", stated, REMEDY)
        build = METHODS.get(str(_method(own)))
        rules = None
        with suppress(re.error):  # a list has a pattern that is not one
            rules = build(own, max(plain, 2), fields) if build else None
        if rules is not None:
            return rules
    raise InputError(f"{fields.name}: unknown quantisation. {REMEDY}")


REMEDY = "Give the dtype of the weights: --weights-dtype fp8, for example."


def _method(own: Fields) -> Any:
    return own.values.get("quant_method", "modelopt" if own.first("quant_algo", "quantization") else None)


def _names(own: Fields, *names: str) -> Names | None:
    """The modules of the first of some lists that a config has."""
    named = own.first(*names)
    listed = own.values[named] if named else None
    return Names(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else None


def _fp8(own: Fields, plain: int, fields: Fields) -> Quantisation | None:
    block = own.values.get("weight_block_size")
    storage = FP8_TENSOR
    if block is not None:
        if not (isinstance(block, list) and len(block) == 2):
            return None
        storage = Storage(8, (own.checked("weight_block_size", block[0]), own.checked("weight_block_size", block[1])),
                          is_float=True)  # fmt: skip
    experts = None
    if "compress_ratios" in fields and fields.values.get("expert_dtype", "fp4") == "fp4":  # DeepSeek V4
        storage = Storage(8, storage.group, 1.0, is_float=True)
        experts = NVFP4 if own.values.get("moe_quant_algo") == "NVFP4" else MXFP4
    return Quantisation(plain, storage, _names(own, "modules_to_not_convert", "ignored_layers"), experts=experts)


def _int8(own: Fields, plain: int, fields: Fields) -> Quantisation:
    return Quantisation(plain, INT8_CHANNEL)


def _mxfp4(own: Fields, plain: int, fields: Fields) -> Quantisation:
    return Quantisation(plain, experts=MXFP4, expert_multiple=64)  # gpt-oss at TP 2, 4 and 8 in vLLM


def _grouped(bits: int, size: int, zero_points: bool) -> Storage:
    """Whole numbers with a scale of 16 bits for each group of inputs; -1 is one group an output."""
    return Storage(bits, (1, max(size, 0)), 2 + (bits / 8 if zero_points else 0))


def _awq(own: Fields, plain: int, fields: Fields) -> Quantisation:
    bits, size = own.whole("bits", own.values.get("w_bit", 4)), own.whole("group_size", 128, least=-1)
    head = own.values.get("lm_head") is True
    return Quantisation(plain, _grouped(bits, size, True), _names(own, "modules_to_not_convert"), takes_head=head)


def _gptq(own: Fields, plain: int, fields: Fields) -> Quantisation:
    bits, size = own.whole("bits", 4), own.whole("group_size", 128, least=-1)
    own_rules = own.values.get("dynamic")
    dynamic = own_rules if isinstance(own_rules, dict) else {}
    skipped = Names(f"re:.*{name.removeprefix('-:')}" for name in dynamic if name.startswith("-:"))
    head = own.values.get("lm_head") is True
    return Quantisation(plain, _grouped(bits, size, True), skipped, takes_head=head)


def _auto_round(own: Fields, plain: int, fields: Fields) -> Quantisation:
    bits, size = own.whole("bits", 4), own.whole("group_size", 128, least=-1)
    extra = own.values.get("extra_config")
    rows = {
        name: Fields(own.name, row, own.hint) for name, row in extra.items() if isinstance(row, dict)
    } if isinstance(extra, dict) else {}  # fmt: skip
    sizes = {name: (row.whole("bits", bits), row.whole("group_size", size, least=-1)) for name, row in rows.items()}
    skipped = Names(_expression(name) for name, (wide, _) in sizes.items() if wide >= 16)
    named = tuple(
        (Names([_expression(name)]), _grouped(wide, group, True)) for name, (wide, group) in sizes.items() if wide < 16
    )
    return Quantisation(plain, _grouped(bits, size, True), skipped, named)


def _expression(name: str) -> str:
    """auto-round writes patterns as they are."""
    return f"re:{name}" if any(sign in name for sign in "*[(\\") else name


def _bitsandbytes(own: Fields, plain: int, fields: Fields) -> Quantisation:
    bits = 4 if own.values.get("load_in_4bit") or own.values.get("_load_in_4bit") else 8
    return Quantisation(plain, BITSANDBYTES[bits], _names(own, "llm_int8_skip_modules"))


def _fbgemm(own: Fields, plain: int, fields: Fields) -> Quantisation:
    return Quantisation(plain, FP8_CHANNEL, _names(own, "modules_to_not_convert"))


ALGORITHMS = {
    "FP8": FP8_TENSOR, "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL, "FP8_PB_WO": Storage(8, (128, 128), is_float=True),
    "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "MXFP8": MXFP8, "MXFP4": MXFP4, "W4A16_MXFP4": MXFP4,
    "INT8_SQ": INT8_CHANNEL, "W8A8_SQ_PER_CHANNEL": INT8_CHANNEL, "W4A16_AWQ": _grouped(4, 128, False),
}  # fmt: skip


def _modelopt(own: Fields, plain: int, fields: Fields) -> Quantisation | None:
    """Also what a hf_quant_config.json beside the config.json states."""
    inner = own.values.get("quantization")
    if isinstance(inner, dict):
        own = Fields(own.name, inner, own.hint)
    algorithm, skipped = own.values.get("quant_algo"), _names(own, "exclude_modules", "ignore")
    if algorithm != "MIXED_PRECISION":
        storage = ALGORITHMS.get(str(algorithm))
        return Quantisation(plain, storage, skipped, takes_head=True) if storage else None
    layers = own.values.get("quantized_layers")
    by_kind: dict[str, list[str]] = {}
    for name, row in layers.items() if isinstance(layers, dict) else ():
        by_kind.setdefault(str(row.get("quant_algo") if isinstance(row, dict) else None), []).append(name)
    if not by_kind or not by_kind.keys() <= ALGORITHMS.keys():
        return None
    named = tuple((Names(names), ALGORITHMS[kind]) for kind, names in by_kind.items())
    return Quantisation(plain, None, skipped, named, takes_head=True)


def _compressed_tensors(own: Fields, plain: int, fields: Fields) -> Quantisation | None:
    groups = own.values.get("config_groups")
    rows = [row for row in groups.values() if isinstance(row, dict)] if isinstance(groups, dict) else []
    default, named = None, []
    for row in rows:
        weights = row.get("weights")
        storage = _scheme(weights) if isinstance(weights, dict) else None
        targets = row.get("targets")
        if storage is None or not isinstance(targets, list):
            return None
        if "Linear" in targets:
            default = storage
        named.append((Names(name for name in targets if isinstance(name, str) and name != "Linear"), storage))
    if not rows:
        return None
    return Quantisation(plain, default, _names(own, "ignore"), tuple(named))


def _scheme(weights: Mapping[str, Any]) -> Storage | None:
    """The storage of a group's weights: bits, type, strategy and group size."""
    bits, is_float, size = weights.get("num_bits"), weights.get("type") == "float", weights.get("group_size") or 0
    strategy = weights.get("strategy") or ("group" if size else "tensor")
    if bits not in (2, 3, 4, 8) or type(size) is not int:
        return None
    if strategy == "block":
        block = weights.get("block_structure")
        rows, columns = block if isinstance(block, list) and len(block) == 2 else (128, 128)
        return Storage(bits, (rows, columns), 4.0, is_float)
    if bits == 4 and is_float:
        return MXFP4 if size == 32 else NVFP4
    if bits == 8:
        if size:
            return MXFP8 if is_float else _grouped(8, size, weights.get("symmetric") is False)
        return Storage(8, (0, 0) if strategy == "tensor" else (1, 0), 4.0, is_float)
    return None if is_float else _grouped(bits, size, weights.get("symmetric") is False)


QUARK = {
    ("fp4", "per_group"): MXFP4, ("fp8_e4m3", "per_tensor"): FP8_TENSOR, ("fp8_e4m3", "per_channel"): FP8_CHANNEL,
    ("int8", "per_tensor"): INT8_TENSOR, ("int8", "per_channel"): INT8_CHANNEL,
}  # fmt: skip


def _quark(own: Fields, plain: int, fields: Fields) -> Quantisation | None:
    """A scheme for all products, others by name, and a list of what stays."""
    default, layers = _quark_scheme(own.values.get("global_quant_config")), own.values.get("layer_quant_config")
    stated = layers if isinstance(layers, dict) else {}
    named = [(Names([name]), _quark_scheme(row)) for name, row in stated.items()]
    if default is None or any(storage is None for _, storage in named):
        return None
    return Quantisation(plain, default, _names(own, "exclude"), tuple(named))


def _quark_scheme(stated: Any) -> Storage | None:
    weight = stated.get("weight") if isinstance(stated, dict) else None
    weight = weight[0] if isinstance(weight, list) and weight else weight
    return QUARK.get((str(weight.get("dtype")), str(weight.get("qscheme")))) if isinstance(weight, dict) else None


METHODS: dict[str, Callable[[Fields, int, Fields], Quantisation | None]] = {
    "fp8": _fp8, "int8": _int8, "mxfp4": _mxfp4, "awq": _awq, "awq_marlin": _awq, "gptq": _gptq, "gptq_marlin": _gptq,
    "auto-round": _auto_round, "bitsandbytes": _bitsandbytes, "fbgemm_fp8": _fbgemm, "modelopt": _modelopt,
    "modelopt_fp4": _modelopt, "modelopt_mixed": _modelopt, "compressed-tensors": _compressed_tensors,
    "quark": _quark,
}  # fmt: skip
