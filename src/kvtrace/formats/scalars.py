"""Columns of JSON scalars, for keys that are not part of a format."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import orjson

from .._base.errors import InputError
from .._native import numbering

MAX_KEYS = 256  # each is a column of all rows
Chunk = tuple[np.ndarray, Any]  # rows, and their values: int64, or a list of scalars


def require_few_keys(keys: Sized, path: str) -> None:
    """InputError if rows have too many different keys: their columns would need memory for each key and row."""
    if len(keys) > MAX_KEYS:
        raise InputError(
            f"{path}: the rows have more than {MAX_KEYS} different keys. Remove those that no format of kvtrace has."
        )


def decode(values) -> Any:
    """The row scanner's values: int64 unchanged, the bytes of a JSON array as a list."""
    return values if isinstance(values, np.ndarray) else orjson.loads(values)


def column(rows: int, chunks: list[Chunk]) -> np.ndarray:
    """The chunks as one column of int64, float64, bool or objects; None for rows without a value.

    >>> column(3, [(np.array([0, 2]), np.array([5, 6])), (np.array([1]), [7])])
    array([5, 7, 6])
    >>> column(3, [(np.array([0, 2]), ["text", "image"])])
    array(['text', None, 'image'], dtype=object)
    """
    if sum(len(at) for at, _ in chunks) == rows and all(isinstance(values, np.ndarray) for _, values in chunks):
        whole = np.empty(rows, dtype=np.int64)
        for at, values in chunks:
            whole[at] = values
        return whole
    column = np.full(rows, None, dtype=object)
    strings: dict[str, str] = {}  # one object for each distinct string
    for at, values in chunks:
        values = values.tolist() if isinstance(values, np.ndarray) else values
        column[at] = objects([strings.setdefault(v, v) if type(v) is str else v for v in values])
    return narrow(column)


def narrow(values: np.ndarray) -> np.ndarray:
    """A column of objects as the simplest type that fits all values."""
    kinds = set(map(type, values.tolist()))
    if kinds == {bool}:
        return values.astype(bool)
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return values.astype(np.int64)
    if kinds and kinds <= {int, float} and all(abs(value) <= 2**53 for value in values if type(value) is int):
        return values.astype(np.float64)
    return values


def labels(values: np.ndarray) -> np.ndarray:
    """Numbers for the distinct values in order of first appearance, -1 for None and for -1 itself: int64.

    >>> labels(np.array(["b", None, "a", "b"], dtype=object))
    array([ 0, -1,  1,  0])
    """
    if values.dtype == np.int64:  # the kernel gives the same numbers, faster
        numbered, inside = np.full(len(values), -1, dtype=np.int64), values != -1
        numbered[inside] = numbering.renumber(values[inside])[0]
        return numbered
    number: dict[Any, int] = {None: -1, -1: -1}
    return np.array([number.setdefault(value, len(number) - 2) for value in values.tolist()], dtype=np.int64)


def without(values: np.ndarray, missing: int) -> np.ndarray:
    """The column with None in place of `missing`.

    >>> without(np.array([3, -1]), -1)
    array([3, None], dtype=object)
    """
    column = values.astype(object)
    column[values == missing] = None
    return column


def numbered(values: np.ndarray) -> np.ndarray:
    """Numbers as a file has them: None in place of -1.

    >>> numbered(np.array([3, -1])), numbered(np.array([3, 1]))
    (array([3, None], dtype=object), array([3, 1]))
    """
    return without(values, -1) if (values < 0).any() else values


def objects(values: Sequence[Any]) -> np.ndarray:
    """Values of any type as an array of objects; lists stay lists.

    >>> objects([[1], [2]])
    array([list([1]), list([2])], dtype=object)
    """
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
