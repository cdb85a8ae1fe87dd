"""`convert` for a data set: the steps that look at one row at a time, from a folder into a file, in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._base.errors import InputError
from ..trace.columns import Columns, replace_columns
from ..trace.conversion import checked_ratio, convert, meta_of
from .dataset import Dataset, rows_of
from .lazy import LazyTrace
from .trace_files import write_chunks

STREAMED = ("mooncake", "dataset")  # formats that are written row by row
ROW_BY_ROW = ("limit", "ratio")  # steps that look at one row at a time


def streams(format: Any, **steps) -> bool:
    """Whether steps of `convert` other than those that were left as they are can be taken row by row.

    >>> streams("mooncake", limit=10, ratio=2.0, factor=1), streams("parquet"), streams("dataset", factor=2)
    (True, False, False)
    """
    usual = convert.__kwdefaults__ or {}
    others = {name: value for name, value in steps.items() if name not in ROW_BY_ROW}
    return format in STREAMED and all(value == usual[name] for name, value in others.items())


def convert_dataset(
    parts: Dataset, path, limit: int | None = None, ratio: float = 1.0, *, format: str, first_id: int = 0, extra=False
) -> tuple[list[str], int]:
    """Write a folder of parts as another or as JSON Lines, as `convert` and `formats.write` would; (files, requests).

    The folder is read twice: first to verify it.
    """
    whole = LazyTrace(parts, extra=())
    count = len(whole) if limit is None else min(limit, len(whole))
    if not count:
        raise InputError(f"{parts.path}: holds no requests.")
    meta = meta_of(whole, whole, ratio=checked_ratio(ratio), requests=count)
    del whole
    columns = _row_by_row(parts, count, ratio)
    names = write_chunks(
        columns, path, block_size=parts.block_size, tail=parts.tail, format=format, first_id=first_id, extra=extra,
        meta=meta,
    )  # fmt: skip
    return names, count


def _row_by_row(parts, limit, ratio) -> Iterator[Columns]:
    """The first rows of a folder of parts, faster."""
    for columns in parts.chunks(1 << 18):
        some = columns if len(columns) <= limit else rows_of(columns, 0, limit)
        yield some if ratio == 1 else replace_columns(some, timestamp=some.timestamp / ratio)
        limit -= len(some)
        if not limit:
            return
