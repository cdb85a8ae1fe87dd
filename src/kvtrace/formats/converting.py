"""Convert a trace file or a data set: to another format or for a client, whole or in part.

A data set takes the steps that need one row at a time, streamed into a file or another data set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from .._base.errors import InputError
from .._base.file_locks import only_writer
from .._base.files import NamedFile, require_distinct
from .._base.memory import MemoryNeed
from .._base.options import split_options
from .._base.results import Result, columns_of
from ..trace.columns import Columns, replace_columns, rows_of
from ..trace.conversion import checked_ratio, converted, meta_of
from ..trace.conversion_options import ConvertOptions
from ..trace.trace import Trace
from . import dataset as datasets
from . import format_table, memory_needs, reading, targets, writing
from .bailian import changed_times
from .dataset import Dataset
from .lazy import LazyTrace, dataset_at, require_memory
from .left_out import EXTRA, left_out
from .sidecar import sidecar_path
from .targets.losses import Losses
from .writing import write_chunks

STREAMED = ("mooncake", "dataset")  # formats that can be written row by row


def streams(format: str | None, steps: ConvertOptions) -> bool:
    """Whether a conversion can be streamed: row-by-row steps into a streamed format.

    >>> sped_up, folded = ConvertOptions(limit=10, ratio=2.0), ConvertOptions(factor=2)
    >>> streams("mooncake", sped_up), streams("parquet", sped_up), streams("dataset", folded)
    (True, False, False)
    """
    row_by_row = ConvertOptions(limit=steps.limit, ratio=steps.ratio, seed=steps.seed)
    return format in STREAMED and steps == row_by_row


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


COUNTS = "dependencies of the whole"  # a column for the time of a conversion
NOT_AUDITED = "the release profile: a conversion is not audited. `kvtrace release` writes a file with a profile"


@dataclass(frozen=True, repr=False)
class Converted(Result):
    """A conversion: what was read, and what was written."""

    requests: int
    source_requests: int
    block_size: int
    fixes: str  # changes that made a Trace of the file
    files: list[str]
    losses: list[str]  # what the output does not have
    usage: list[str]  # commands for the client

    def _headline(self) -> str:
        size = f"{self.requests:,} of {self.source_requests:,} requests, block_size={self.block_size:,}"
        return f"{size}, {len(self.files)} files, {len(self.losses)} losses"

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return dict(vars(self))

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(
            [vars(self) | {name: "; ".join(getattr(self, name)) for name in ("files", "losses", "usage")}]
        )


def convert_file(
    path: str | Path,
    output: str | Path,
    *,
    to: str | None = None,
    block_size: int | None = None,
    first_id: int = 0,
    extra: bool = False,
    memory: int | None = None,
    on_need: Callable[[MemoryNeed], None] | None = None,
    on_write: Callable[[int], None] | None = None,
    **steps: Any,
) -> Converted:
    """Convert a trace file, as `kvtrace convert` does; a data set is streamed if each step needs one row at a time.

    Args:
        path: The trace: a file, a data set, or `-` for stdin.
        output: The file or data set to write, or `-` for stdout.
        to: A format or a client of https://github.com/kvtrace/kvtrace/blob/main/docs/formats/formats.md. Default: by
            the name of the output, else mooncake.
        block_size: Tokens per block. Default: from the sidecar, else inferred.
        first_id: The first block id in the output.
        extra: Also write extra columns that are not part of the format.
        memory: Bytes that a data set may need.
        on_need: Receives the memory that a data set needs, before its first row is read.
        on_write: Receives the number of requests to write, before the first of them.
        steps: As in `convert`.

    Returns:
        Counts, the written files, losses, and commands for the client.

    Raises:
        UsageError: An argument is not valid, or the output is not writable.
        InputError: The file is not a valid trace.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = kvtrace.write(kvtrace.toy("0 1", "0 2", block_size=4), f"{folder}/day.jsonl")
    ...     convert_file(f"{folder}/day.jsonl", f"{folder}/first.jsonl", limit=1).requests
    1
    """
    (options,) = split_options(steps, ConvertOptions)
    client = None if to is None or to in format_table.NAMES else to
    format = writing.check_output(output, to) if client is None else None
    if client is not None:
        targets.check_output(output, client)
    _require_distinct(path, output)
    with only_writer(output, (sidecar_path(output),)):
        dataset = dataset_at(path, block_size=block_size, memory=memory)
        if dataset is not None and streams(format, options):
            require_memory(memory_needs.converting(dataset), memory, on_need)
            files, requests, losses = convert_dataset(
                dataset, output, options.limit, options.ratio, format=str(format), first_id=first_id, extra=extra,
                on_write=on_write,
            )  # fmt: skip
            return Converted(requests, len(dataset), dataset.block_size, "", files, _lost(dataset) + losses, [])
        if dataset is not None:
            require_memory(memory_needs.whole(dataset, "this conversion"), memory, on_need)
        whole = reading.read(path, block_size=block_size)
        part, cut = _cut_dependencies(whole, lambda: converted(whole, options))
        if on_write:
            on_write(len(part))
        meta = meta_of(part, whole, ratio=options.ratio)
        if client is None:
            written = _write(part, output, to, first_id=first_id, extra=extra, meta=meta)
        else:
            written = targets.write(part, output, client, first_id=first_id, meta=meta)
    losses = _lost(whole) + cut + written.losses
    return Converted(len(part), len(whole), part.block_size, str(whole.fixes), written.files, losses, written.usage)


def _require_distinct(path, output) -> None:
    """UsageError if the output, or the sidecar beside it, is the input."""
    files: list[list[NamedFile]] = []
    for name, file in (("the input", path), ("the output", output)):
        is_folder = os.path.isdir(file) or datasets.has_dataset_name(file)
        beside = [] if is_folder else [NamedFile(name, sidecar_path(file), "sidecar")]
        files.append([NamedFile(name, file, is_whole=is_folder), *beside])
    require_distinct(*files)


def _write(part: Trace, output: str | Path, to: str | None, *, extra: bool, **options: Any) -> targets.Written:
    """Write a part in a format of traces."""
    format = writing.check_output(output, to)
    files = writing.write(part, output, format=to, extra=extra, **options)
    losses = left_out(part, format, extra=extra, remedy=EXTRA)
    return targets.Written(files, losses + (_changed_times(part) if format == "bailian" else []), [])


def _lost(source) -> list[str]:
    """The values of the sidecar that no conversion keeps."""
    return [NOT_AUDITED] if "profile" in source.meta else []


def _cut_dependencies(whole: Trace, make_part: Callable[[], Trace]) -> tuple[Trace, list[str]]:
    """A part of a trace, and a sentence on those dependencies of its requests that are on requests outside."""
    if whole.dependencies is None:
        return make_part(), []
    whole.extra[COUNTS] = np.diff(whole.dependencies.offsets)  # of each request, through all steps
    try:
        part = make_part()
    finally:
        whole.extra.pop(COUNTS)
    counts = part.extra.pop(COUNTS) if part is not whole else np.diff(whole.dependencies.offsets)
    losses, kept = Losses(), part.dependencies
    losses.add(
        int(counts.sum()) - (0 if kept is None else len(kept.row)),
        "dependency on a request outside the part was removed: its request starts at its own time.",
        "dependencies on requests outside the part were removed: their requests start at their own times.",
    )
    return part, losses.sentences


def _changed_times(trace: Trace) -> list[str]:
    """A sentence on times that the seconds of Qwen-Bailian cannot hold."""
    losses, kept = Losses(), "than seconds can keep; a reader rounds"
    losses.add(
        changed_times(trace.timestamp), f"time has more decimals {kept} it.", f"times have more decimals {kept} them."
    )
    return losses.sentences
