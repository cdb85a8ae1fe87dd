"""Block hashes that a log has in hexadecimal, one a block, as 64-bit words; and the block size that they show."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._base.errors import RowError
from ...formats.block_size import fitting
from . import fields
from .record import Record

WORD = 16  # hexadecimal digits of 64 bits


def hex_hashes(values: Any, path: str, *, digits: int) -> array[int]:
    """The hashes of a prompt's blocks as uint64 words, the words of a hash side by side; RowError, without content.

    Args:
        values: The list of the log.
        path: Its JSON path.
        digits: Of each hash, a multiple of 16.

    >>> hex_hashes(["00000000000000ff"], "hashes", digits=16)
    array('Q', [255])
    """
    if type(values) is not list:
        raise fields.wrong(values, path, "a list of hashes")
    text = "".join(values) if all(type(value) is str and len(value) == digits for value in values) else ""
    if len(text) != digits * len(values) or not re.fullmatch("[0-9a-fA-F]*", text):
        raise RowError(f"is not a list of hashes: each must be a text of {digits} hexadecimal digits.", field=path)
    return array("Q", np.frombuffer(bytes.fromhex(text), dtype=">u8").astype(np.uint64).tobytes())


def is_hashes(values: Any, *, digits: int) -> bool:
    """Whether the value is a list of hashes, by its first one.

    >>> is_hashes(["00000000000000ff"], digits=16), is_hashes([7], digits=16)
    (True, False)
    """
    if type(values) is not list or not values or type(values[0]) is not str:
        return False
    return len(values[0]) == digits and re.fullmatch("[0-9a-fA-F]+", values[0]) is not None


def fitted_size(records: Sequence[Record], words: int, tail: str) -> int | None:
    """The block size that fits the lengths and hashes of these requests; None if no size does, or several do.

    Args:
        records: Requests with `hashes`; those without `input_length` show nothing.
        words: 64-bit words of a hash.
        tail: "kept" if the last, partial block of a prompt has a hash, "dropped" if it has none.

    >>> fitted_size([Record(input_length=1200, hashes=array("Q", [1, 2]))], 1, "dropped")
    512
    """
    known = [(one.input_length, len(one.hashes) // words) for one in records if one.hashes and one.input_length]
    if not known:
        return None
    lengths, blocks = np.array(known, dtype=np.int64).T
    sizes = fitting(lengths, blocks, tail)
    if sizes.rows < len(known):
        return None
    candidates = [sizes.low] if sizes.low == sizes.high else sizes.powers()
    return candidates[0] if len(candidates) == 1 else None
