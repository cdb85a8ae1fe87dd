"""A Batch as bytes and back: JSON for its plain values and rejects, and its arrays as they are in memory. No pickle."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from math import prod
from typing import Any

import numpy as np

from .._base.errors import RowError
from .encoding import Batch, Place, Reject

COUNT = struct.Struct("<I")  # bytes of the JSON


def packed(batch: Batch) -> bytes:
    """The batch's bytes: the length of the JSON, the JSON, which says what arrays there are, and these end to end.

    >>> len(unpacked(packed(Batch(lines=7, type=["text", None])))), unpacked(packed(Batch(lines=7))).lines
    (0, 7)
    """
    values: dict[str, Any] = {}
    arrays: list[np.ndarray] = []
    for name in (field.name for field in fields(Batch)):
        value = getattr(batch, name)
        if isinstance(value, np.ndarray):
            arrays.append(value)
            value = {"dtype": value.dtype.str, "shape": value.shape}
        elif name == "rejects":
            value = [_row(reject) for reject in value]
        values[name] = value
    plain = json.dumps(values).encode()
    return b"".join([COUNT.pack(len(plain)), plain, *(array.tobytes() for array in arrays)])


def unpacked(data: bytes) -> Batch:
    """The batch that `packed` made these bytes of."""
    (size,) = COUNT.unpack_from(data)
    values, at = json.loads(data[COUNT.size : COUNT.size + size]), COUNT.size + size
    for name, value in values.items():
        if isinstance(value, dict):
            dtype, shape = np.dtype(value["dtype"]), value["shape"]
            values[name] = np.frombuffer(data, dtype, prod(shape), at).reshape(shape).copy()  # ours, aligned, writable
            at += values[name].nbytes
    values["rejects"] = [_reject(row) for row in values["rejects"]]
    return Batch(**values)


def _row(reject: Reject) -> dict[str, Any]:
    place, error = reject.place, reject.error
    return {"place": [place.line, place.offset, place.length], "error": [error.reason, error.field, error.hint]}


def _reject(row: dict[str, Any]) -> Reject:
    reason, field, hint = row["error"]
    return Reject(Place(*row["place"]), RowError(reason, field=field, hint=hint))
