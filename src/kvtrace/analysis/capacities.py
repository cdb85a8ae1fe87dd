"""Parse capacities: blocks, tokens, bytes of KV cache, or a share of the working set."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import index

import numpy as np

from .._base.errors import UsageError
from .._base.units import BYTES, COUNTS, MAX_BLOCKS, NUMBER, number, two_sizes

ADD_MODEL = "Add --model or --kv-bytes-per-token."
FORM = re.compile(rf"({NUMBER})\s*([a-zA-Z%]*)")
THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:,\d{3})+(?![\d.])")


def parse_capacities(
    text: str,
    *,
    block_size: float,
    working_set: int,
    kv_bytes_per_token: int | None = None,
    block_bytes: int | None = None,
) -> list[int]:
    """Parse a comma-separated list of capacities into blocks.

    Commas separate capacities, but `1,000` is one: no number begins with a zero.

    Args:
        text: The capacities.
        block_size: Tokens of a block.
        working_set: Blocks of the working set.
        kv_bytes_per_token: Bytes of a token's KV.
        block_bytes: Bytes of a block, where they are not those of its tokens.

    Raises:
        UsageError: One of them is not a capacity.

    >>> parse_capacities("1,000, 20_208", block_size=64, working_set=300)
    [1000, 20208]
    >>> parse_capacities("1000, 2k, 6400tokens, 50%", block_size=64, working_set=300)
    [1000, 2000, 100, 150]
    >>> parse_capacities("1GiB", block_size=16, working_set=300, kv_bytes_per_token=131072)
    [512]
    """
    parts = filter(str.strip, THOUSANDS.sub(_without_commas, text).split(","))
    return [
        parse_capacity(
            part,
            block_size=block_size,
            working_set=working_set,
            kv_bytes_per_token=kv_bytes_per_token,
            block_bytes=block_bytes,
        )
        for part in parts
    ] or _raise_not_a_capacity(text)


def _without_commas(match: re.Match[str]) -> str:
    """A number without its commas, if its groups after the first can't be numbers of their own."""
    groups = match[0].split(",")[1:]
    if not any(group.startswith("0") for group in groups):
        return match[0]
    if not all(group.startswith("0") for group in groups):
        plain = match[0].replace(",", "")
        raise UsageError(f"{match[0]!r} could be one capacity or several. Write {plain} for one.")
    return match[0].replace(",", "")


def hint_on_commas(text: str, longest: int) -> str | None:
    """A hint to write a list as one number, if it looks like one and a part of it is less than the longest request.

    >>> hint_on_commas("20,208", 100)
    'Commas separate capacities; for one of 20,208 blocks, write 20208.'
    >>> hint_on_commas("200,400", 100)
    """
    if not THOUSANDS.fullmatch(text.strip()) or ",0" in text or min(map(int, text.split(","))) >= longest:
        return None
    return f"Commas separate capacities; for one of {text.strip()} blocks, write {text.strip().replace(',', '')}."


def parse_capacity(
    text: str,
    *,
    block_size: float,
    working_set: int,
    kv_bytes_per_token: int | None = None,
    block_bytes: int | None = None,
) -> int:
    """Parse one capacity into blocks, as `parse_capacities` does; it may have separators of thousands.

    >>> parse_capacity("20,208", block_size=64, working_set=300)
    20208
    """
    text = text.strip()
    match = FORM.fullmatch(text)
    if not match:
        return _raise_not_a_capacity(text)
    amount, unit = number(match[1]), match[2].lower().removesuffix("s")
    if unit == "%":
        blocks = round(amount / 100 * working_set)
    elif unit in BYTES:
        if kv_bytes_per_token is None and block_bytes is None:
            raise UsageError(f"capacity {text} is in bytes. {ADD_MODEL}")
        blocks = int(amount * BYTES[unit] // (block_bytes or (kv_bytes_per_token or 0) * block_size))
    elif unit.removesuffix("token").strip() in COUNTS and unit.endswith("token"):
        blocks = int(amount * COUNTS[unit.removesuffix("token")] // block_size)
    elif unit.removesuffix("block") in COUNTS:
        blocks = int(amount * COUNTS[unit.removesuffix("block")])
    elif unit in ("g", "t"):
        raise UsageError(f"capacity {text} {two_sizes(match[1], unit)}")
    else:
        return _raise_not_a_capacity(text)
    if not 1 <= blocks <= MAX_BLOCKS:
        bound = "less than one block" if blocks < 1 else f"more than {MAX_BLOCKS:,} blocks"
        raise UsageError(f"capacity {text} is {bound} of {block_size:,g} tokens.")
    return blocks


def _raise_not_a_capacity(text):
    raise UsageError(
        f"{text!r} is not a capacity. Examples: 1000 (blocks), 64ktokens, 24GiB, 50% (of the working set)."
    )


def whole_blocks(capacities: Iterable[int]) -> np.ndarray:
    """The capacities as an array of integers.

    Raises:
        UsageError: One of them is not a whole number of blocks, 0 or more.

    >>> whole_blocks([0, 300]).tolist()
    [0, 300]
    """
    return np.array([_whole(capacity) for capacity in capacities], dtype=np.int64)


def _whole(capacity):
    try:
        blocks = index(capacity)
    except TypeError:
        blocks = -1
    if not 0 <= blocks <= MAX_BLOCKS:
        raise UsageError(
            f"{capacity!r} is not a valid capacity; it must be a whole number of blocks, 0 or more. "
            "parse_capacities converts a text such as '50%' or '24GiB'."
        )
    return blocks


def log_spaced(longest: int, working_set: int, points: int = 25) -> list[int]:
    """Capacities from the longest request to the whole working set, evenly on a log scale.

    >>> log_spaced(10, 1000, 3)
    [10, 100, 1000]
    """
    low, high = max(1, min(longest, working_set)), max(1, working_set)
    between = np.geomspace(low, high, points) if points > 1 else [high]
    return sorted({min(high, round(float(value))) for value in between})
