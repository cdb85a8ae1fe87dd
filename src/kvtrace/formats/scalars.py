"""Columns of JSON scalars: what the keys hold that a format does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

Chunk = tuple[np.ndarray, Any]  # rows, and their values: int64, or a list of scalars


def decode(values) -> Any:
    """What the row scanner noted: int64 as it is, the bytes of a JSON array as a list."""
    return values if isinstance(values, np.ndarray) else orjson.loads(values)


def column(rows: int, chunks: list[Chunk]) -> np.ndarray:
    """One column of the chunks: int64, float64, bool, or objects, None where a row has no value.

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
    found = np.full(rows, None, dtype=object)
    same: dict[str, str] = {}  # one object a distinct string
    for at, values in chunks:
        values = values.tolist() if isinstance(values, np.ndarray) else values
        found[at] = _objects([same.setdefault(v, v) if type(v) is str else v for v in values])
    return narrow(found)


def narrow(values: np.ndarray) -> np.ndarray:
    """A column of objects in the plainest type that holds all of them."""
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
    number: dict[Any, int] = {None: -1, -1: -1}
    return np.array([number.setdefault(value, len(number) - 2) for value in values.tolist()], dtype=np.int64)


def without(values: np.ndarray, missing: int) -> np.ndarray:
    """The column with None in place of `missing`.

    >>> without(np.array([3, -1]), -1)
    array([3, None], dtype=object)
    """
    found = values.astype(object)
    found[values == missing] = None
    return found


def _objects(values: list) -> np.ndarray:
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects
