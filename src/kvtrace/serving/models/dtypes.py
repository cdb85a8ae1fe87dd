"""Sizes of numbers: of weights, of cached keys and values, and of states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._base.errors import InputError, UsageError

if TYPE_CHECKING:
    from .config import Fields

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1}
KV_BITS = {name: 8 * size for name, size in BYTES.items()} | {"fp4": 4, "int4": 4}  # without the scales of a block
WEIGHT_BYTES = {**BYTES, "int4": 0.5, "mxfp4": 17 / 32}  # mxfp4: one byte of scale per 32 values of half a byte


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
