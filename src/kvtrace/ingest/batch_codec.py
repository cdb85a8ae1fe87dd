"""Serialise a Batch: a JSON header for plain values and rejects, then the arrays' bytes. No pickle."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from math import prod
from typing import Any

import numpy as np

from .._base.errors import RowError
from .encoding import Batch, Reject, RowPosition
from .usage import UsageCheck

HEADER_LENGTH = struct.Struct("<I")  # bytes of the JSON header


def packed(batch: Batch) -> bytes:
    """Serialise a batch: the header's length, the header (with each array's type and shape), the arrays end to end.

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
        elif name == "usage" and value is not None:
            value = value.to_list()
        values[name] = value
    header = json.dumps(values).encode()
    return b"".join([HEADER_LENGTH.pack(len(header)), header, *(array.tobytes() for array in arrays)])


def unpacked(data: bytes) -> Batch:
    """The batch that `packed` serialised."""
    (size,) = HEADER_LENGTH.unpack_from(data)
    offset = HEADER_LENGTH.size + size
    values = json.loads(data[HEADER_LENGTH.size : offset])
    for name, value in values.items():
        if isinstance(value, dict) and "dtype" in value:
            dtype, shape = np.dtype(value["dtype"]), value["shape"]
            values[name] = np.frombuffer(data, dtype, prod(shape), offset).reshape(shape).copy()  # aligned, writable
            offset += values[name].nbytes
    usage = values["usage"]
    values["usage"] = None if usage is None else UsageCheck.from_list(usage)
    values["rejects"] = [_reject(row) for row in values["rejects"]]
    return Batch(**values)


def _row(reject: Reject) -> dict[str, Any]:
    position, error = reject.position, reject.error
    return {
        "place": [position.line, position.offset, position.length], "error": [error.reason, error.field, error.hint]
    }  # fmt: skip


def _reject(row: dict[str, Any]) -> Reject:
    reason, field, hint = row["error"]
    return Reject(RowPosition(*row["place"]), RowError(reason, field=field, hint=hint))
