"""`convert` for a data set: the steps that need one row at a time, streamed into a file or another data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from .._base.errors import InputError
from ..trace.columns import Columns, replace_columns, rows_of
from ..trace.conversion import checked_ratio, convert, meta_of
from .dataset import Dataset
from .lazy import LazyTrace
from .left_out import EXTRA, left_out
from .writing import write_chunks

STREAMED = ("mooncake", "dataset")  # formats that can be written row by row
ROW_BY_ROW = ("limit", "ratio")  # steps that need one row at a time


def streams(format: Any, **steps) -> bool:
    """Whether a conversion can be streamed: row-by-row steps into a streamed format.

    >>> streams("mooncake", limit=10, ratio=2.0, factor=1), streams("parquet"), streams("dataset", factor=2)
    (True, False, False)
    """
    usual = convert.__kwdefaults__ or {}
    others = {name: value for name, value in steps.items() if name not in ROW_BY_ROW}
    return format in STREAMED and all(value == usual[name] for name, value in others.items())


def convert_dataset(
    dataset: Dataset,
    path,
    limit: int | None = None,
    ratio: float = 1.0,
    *,
    format: str,
    first_id: int = 0,
    extra=False,
    on_write: Callable[[int], None] | None = None,
) -> tuple[list[str], int, list[str]]:
    """Write a data set as another one or as JSON Lines, like `convert` and `write`; returns (files, requests, losses).

    The data set is read twice: first to verify it, then to write it. `on_write` receives the number of requests before.
    """
    whole = LazyTrace(dataset, extra=())
    count = len(whole) if limit is None else min(limit, len(whole))
    if not count:
        raise InputError(f"{dataset.path}: the data set has no requests.")
    meta = meta_of(whole, whole, ratio=checked_ratio(ratio), requests=count)
    names = [name.removeprefix("extra.") for name in dataset.names() if name.startswith("extra.")]
    losses = left_out(cast(Columns, whole), format, names=names, extra=extra, remedy=EXTRA)
    del whole
    columns = _row_by_row(dataset, count, ratio)
    if on_write:
        on_write(count)
    files = write_chunks(
        columns, path, block_size=dataset.block_size, tail=dataset.tail, format=format, first_id=first_id, extra=extra,
        meta=meta,
    )  # fmt: skip
    return files, count, losses


def _row_by_row(dataset, limit, ratio) -> Iterator[Columns]:
    """The first rows of a data set, sped up."""
    for columns in dataset.chunks(1 << 18):
        rows = columns if len(columns) <= limit else rows_of(columns, 0, limit)
        yield rows if ratio == 1 else replace_columns(rows, timestamp=rows.timestamp / ratio)
        limit -= len(rows)
        if not limit:
            return
