"""Tables of arrival times and token counts, for clients without shared prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from ..._base.files import Content, require_name
from ..._base.step_work import report_work
from ...trace.columns import replace_columns
from ...trace.trace import Trace
from .losses import Losses

SIDECAR = False  # the file cannot be read back as a trace
ROWS = 1 << 14  # written at a time


def adapt(trace: Trace, *, sessions: bool = False) -> tuple[Trace, list[str]]:
    """The requests with at least one prompt token and one output token, and the losses.

    >>> from kvtrace.trace.building import toy
    >>> adapt(toy("0 1", "0 2"))[1]
    ['4 hash_ids were left out: shared prefixes are lost.']
    """
    losses = Losses()
    trace = losses.without_empty_prompts(trace)
    columns = losses.some_output(replace_columns(trace))
    losses.drop_blocks(columns, trace.meta)
    if not sessions:
        losses.drop_sessions(columns)
    losses.drop_extra(columns)
    columns.output_ids = columns.output_offsets = None
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta), losses.sentences


def check_name(path: str | Path) -> None:
    """UsageError if the name states another content than CSV; readers of tables decompress them."""
    require_name(path, Content.CSV, "the client's input")


def write_table(
    stream: BinaryIO,
    header: str,
    rows: Iterable[tuple[Any, ...]],
    line: Callable[..., str],
    *,
    count: int | None = None,
) -> None:
    """Write a header, and one line for each row, formatted by `line`.

    `count` is the number of rows, if they are not requests.
    """
    stream.write(f"{header}\n".encode())
    for lines in _batches(line(*row) for row in rows):
        stream.write("".join(lines).encode())
        report_work(len(lines), count)


def rows_of(trace: Trace) -> Iterator[tuple[float, int, int]]:
    """(timestamp in ms, input_length, output_length) of each request, as Python numbers."""
    columns = (trace.timestamp, trace.input_length, trace.output_length)
    return zip(*(column.tolist() for column in columns), strict=True)


def number(value: float) -> str:
    """The shortest text of a number: 1500 ms in seconds is `1.5`, 2000 ms is `2`."""
    return repr(int(value)) if value == int(value) else repr(value)


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(lines, ROWS)):
        yield batch
