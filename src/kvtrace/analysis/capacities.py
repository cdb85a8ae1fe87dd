"""Parse capacities: blocks, tokens, bytes of KV cache, or a share of the working set."""

from __future__ import annotations

import re

import numpy as np

from .._base.errors import UsageError
from .._base.units import BYTES

MAX_BLOCKS = 1 << 48  # larger than any cache, small enough for exact sums
FORM = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z%]*)")
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def parse_capacities(
    text: str, *, block_size: int, working_set: int, kv_bytes_per_token: int | None = None
) -> list[int]:
    """Parse a comma-separated list of capacities into blocks.

    Raises:
        UsageError: One of them is not a capacity.


    >>> parse_capacities("1000, 2k, 6400tokens, 50%", block_size=64, working_set=300)
    [1000, 2000, 100, 150]
    >>> parse_capacities("1GiB", block_size=16, working_set=300, kv_bytes_per_token=131072)
    [512]
    """
    return [
        _parse_capacity(part.strip(), block_size, working_set, kv_bytes_per_token)
        for part in text.split(",")
        if part.strip()
    ] or _raise_not_a_capacity(text)


def _parse_capacity(text, block_size, working_set, kv_bytes_per_token):
    match = FORM.fullmatch(text)
    if not match:
        return _raise_not_a_capacity(text)
    number, unit = float(match[1]), match[2].lower().removesuffix("s")
    if unit == "%":
        blocks = round(number / 100 * working_set)
    elif unit in BYTES:
        if kv_bytes_per_token is None:
            raise UsageError(f"capacity {text} is in bytes. Add --model-config or --kv-bytes-per-token.")
        blocks = int(number * BYTES[unit] // (kv_bytes_per_token * block_size))
    elif unit.removesuffix("token").strip() in COUNTS and unit.endswith("token"):
        blocks = int(number * COUNTS[unit.removesuffix("token")] // block_size)
    elif unit.removesuffix("block") in COUNTS:
        blocks = int(number * COUNTS[unit.removesuffix("block")])
    else:
        return _raise_not_a_capacity(text)
    if not 1 <= blocks <= MAX_BLOCKS:
        bound = "less than one block" if blocks < 1 else f"more than {MAX_BLOCKS:,} blocks"
        raise UsageError(f"capacity {text} is {bound} of {block_size:,} tokens.")
    return blocks


def _raise_not_a_capacity(text):
    raise UsageError(
        f"{text!r} is not a capacity. Examples: 1000 (blocks), 64ktokens, 24GiB, 50% (of the working set)."
    )


def log_spaced(longest: int, working_set: int, points: int = 25) -> list[int]:
    """Capacities from the longest request to the whole working set, evenly on a log scale.

    >>> log_spaced(10, 1000, 3)
    [10, 100, 1000]
    """
    low, high = max(1, min(longest, working_set)), max(1, working_set)
    between = np.geomspace(low, high, points) if points > 1 else [high]
    return sorted({min(high, round(float(value))) for value in between})
