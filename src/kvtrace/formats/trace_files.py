"""Trace files: read with whatever they need, written with a sidecar that says what rows can't.

Each format is a file here and a row in FORMATS; `parts`, a folder, is a file here and has no stream, so no row.
Reading looks at the content, never at the name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .._base.errors import InputError, KvtraceError, RowError, UsageError
from .._base.files import (
    SUFFIXES,
    is_regular,
    is_std,
    name_of,
    open_read,
    outputs_together,
    write_atomically,
    write_together,
)
from ..trace.columns import Columns, replace_columns
from ..trace.invariants import expected_blocks
from ..trace.trace import Trace
from . import bailian, mooncake, parquet
from . import dataset as parts
from .block_size import settle
from .jsonl_read import OnError, read_rows
from .read_result import Found
from .sidecar import Counts, Sidecar, describe, dump, read_sidecar, sidecar_path

FORMATS: dict[str, ModuleType] = {"mooncake": mooncake, "bailian": bailian, "parquet": parquet}
NAMES = (*FORMATS, "dataset")
EXTRA = ("keep", "ignore")
Inspect = Callable[..., str]  # (path, description=sidecar) -> the text of a data card


def read(
    path: str | Path,
    *,
    format: str | None = None,
    block_size: int | None = None,
    tail: str | None = None,
    extra: str = "keep",
    threads: int | None = None,
    add_columns: Callable[[int], dict[str, np.ndarray]] | None = None,
) -> Trace:
    """Read a trace file, and normalise it: rows in time order, times from 0, ids 0, 1, 2, ... (see `Trace.fixes`).

    Args:
        path: A file, which may be packed (gzip, zstd), a data set folder, or "-" for stdin.
        format: "mooncake", "bailian", "parquet" or "dataset"; the default is told by the content.
        block_size: Tokens a block; the default is the sidecar's, else what the prompts imply.
        tail: The last, partial block of a prompt: "kept", "unique" or "dropped"; the default is the sidecar's.
        extra: Keys that a trace does not need: "keep" them as columns, or "ignore" them.
        threads: Threads that parse; the default is one a core.
        add_columns: Gives more columns for a number of rows, in the order of the file.

    Returns:
        The trace.

    Raises:
        InputError: The file cannot be read; the message names the line.
        UsageError: An argument is not valid, or contradicts the sidecar.

    >>> import tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(toy("0 1", "0 2"), f"{folder}/trace.jsonl")
    ...     read(f"{folder}/trace.jsonl")
    Trace(2 requests, 4 blocks, 3 distinct, block_size=1, tail=kept)
    """
    found = read_columns(path, format=format, extra=extra, threads=threads)
    rows, said = found.columns, _sidecar(found, block_size, tail)
    if not len(rows):
        raise InputError(f"{found.path}: holds no requests.")
    if add_columns is not None:
        rows.extra |= add_columns(len(rows))
    block_size = said.block_size if block_size is None else block_size
    with _blaming(said if found.sidecar and found.sidecar.block_size else None):
        block_size, tail = settle(found, block_size, said.tail if tail is None else tail)
    _require_lengths(found, block_size, tail)
    if said.first_id:
        rows = _shifted(rows, -said.first_id)
    with _in_file(found):
        trace = Trace.from_columns(rows, block_size=block_size, tail=tail, meta=said.meta)
    trace.fixes.dangling_parents += len(found.lost_parents)
    return trace


def read_columns(
    path: str | Path,
    *,
    format: str | None = None,
    extra: str = "keep",
    threads: int | None = None,
    on_error: OnError | None = None,
) -> Found:
    """The columns of a file as they stand there, with the line of each row and what the sidecar says.

    Rows that can't be read go to `on_error` and are left out; without one, the first of them ends the reading.
    """
    _require(format, extra, threads)
    name = name_of(path)
    if format == "dataset" or (format is None and os.path.isdir(path) and _holds_dataset(path)):
        return parts.read(path, extra=extra)
    with open_read(path) as stream:
        if format == "parquet" or (format is None and stream.peek(4)[:4] == parquet.MAGIC):
            found = parquet.read(stream, path, extra=extra)
        else:
            keep = None if extra == "keep" else {*mooncake.KEPT, *bailian.MARKS}
            rows = read_rows(stream, name, keep=keep, on_error=on_error, threads=threads)
            reader = FORMATS[format or told_by(rows.others)]
            found = reader.found(rows, name, on_error)
    if extra == "ignore":
        found.columns.extra = {}
    found.sidecar = read_sidecar(path) or found.sidecar
    return found


def write(
    columns: Columns,
    path: str | Path,
    *,
    format: str | None = None,
    first_id: int = 0,
    extra: bool = False,
    meta: Mapping[str, Any] | None = None,
    block_size: int | None = None,
    tail: str | None = None,
    inspect: Inspect | None = None,
) -> list[str]:
    """Write a trace and its sidecar file; both appear whole or not at all.

    Args:
        columns: A Trace, or plain columns with `block_size` and `tail`.
        path: A file (.gz and .zst are packed), a data set folder, or "-" for stdout.
        format: "mooncake", "bailian", "parquet" or "dataset". The default follows from the name: .parquet; .dataset or
            a slash at the end; else "mooncake".
        first_id: Number to add to each id.
        extra: Also write sessions and extra columns in formats that do not have them anyway.
        meta: JSON values for the sidecar; the default is the trace's own.
        block_size: Tokens a block, for plain columns.
        tail: "kept", "unique" or "dropped", for plain columns; the default is "kept".
        inspect: Sees the file before it has its name, and may raise, so that nothing is written; the text that it
            returns becomes `<path>.card.md`.

    Returns:
        The names of the files written.

    Raises:
        UsageError: An argument is not valid, or the place cannot be written to.

    >>> import os, tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [os.path.basename(name) for name in write(toy("0 1", "0 2"), f"{folder}/trace.jsonl")]
    ['trace.jsonl', 'trace.jsonl.meta.json']
    """
    format = check_output(path, format)
    if isinstance(columns, Trace):
        _require_same(columns, block_size, tail)
        block_size, tail = columns.block_size, columns.tail
        meta = columns.meta if meta is None else meta
    elif block_size is None and not is_std(path):
        raise UsageError("plain columns don't know their block size. Pass block_size=.")
    if format == "dataset":
        _require_dataset(first_id)
        size = block_size or 0
        return parts.write(columns, path, block_size=size, tail=tail or "kept", meta=meta, inspect=inspect)
    description = describe(
        columns, block_size=block_size, tail=tail or "kept", first_id=first_id, format=format, meta=meta
    )

    def write_rows(stream):
        FORMATS[format].write(stream, columns, first_id=first_id, extra=extra, description=description)

    return _write_beside(path, write_rows, lambda: description, inspect)


def card_path(path: str | Path) -> str:
    """Where the data card of a trace file is.

    >>> card_path("day.jsonl")
    'day.jsonl.card.md'
    """
    return f"{path}.card.md"


def _write_beside(path, write_rows, described, inspect: Inspect | None) -> list[str]:
    """Write rows, and beside them what describes them once they are written; all get their names together."""
    if not is_regular(path):
        if inspect is None:
            with write_together(path) as (stream,):
                write_rows(stream)
        else:
            _write_inspected(path, write_rows, lambda part: inspect(part, description=described()))
        return [name_of_output(path)]
    beside = [sidecar_path(path)] + ([card_path(path)] if inspect else [])
    with outputs_together(*beside, path) as outputs:
        write_rows(outputs[-1].stream)
        outputs[0].stream.write(dump(described()))
        if inspect:
            outputs[1].stream.write(inspect(outputs[-1].finish(), description=described()).encode())
    return [name_of_output(path), *beside]


def _write_inspected(path, write_rows, inspect) -> None:
    """Write to stdout, a pipe or a device what was inspected in a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, "trace")
        with write_atomically(whole) as stream:
            write_rows(stream)
        inspect(whole)
        with open(whole, "rb") as copy, write_atomically(path) as stream:
            shutil.copyfileobj(copy, stream)


def write_chunks(
    chunks: Iterable[Columns],
    path: str | Path,
    *,
    block_size: int,
    tail: str,
    format: str = "mooncake",
    first_id: int = 0,
    extra: bool = False,
    meta: Mapping[str, Any] | None = None,
    inspect: Inspect | None = None,
) -> list[str]:
    """Write columns that come in chunks as Mooncake's rows or as parts; returns the names of the files written.

    The rows of all chunks together are a trace: times do not fall, and ids are numbered by first appearance, so that
    the greatest says how many there are; all chunks have outputs, or none has. Memory holds one chunk, and of parts one
    part. `inspect` is that of `write`.
    """
    check_output(path, format)
    if format == "dataset":
        _require_dataset(first_id)
        with parts.DatasetWriter(path, block_size=block_size, tail=tail, meta=meta, inspect=inspect) as writer:
            for columns in chunks:
                writer.add(columns)
        return [str(path)]
    counts = Counts()

    def write_rows(stream):
        for columns in chunks:
            FORMATS[format].write(stream, columns, first_id=first_id, extra=extra)
            counts.add(columns)

    def described():
        said = {"block_size": block_size, "tail": tail, "first_id": first_id, "format": format, "meta": meta}
        return describe(None, **said, counts=vars(counts))

    return _write_beside(path, write_rows, described, inspect)


def check_output(path: str | Path, format: str | None = None) -> str:
    """The format that `write` will use; UsageError or KvtraceError, before any work is done, if it could not."""
    _require(format)
    if format is None and parts.has_dataset_name(path):
        format = "dataset"
    if format is None:
        format = "parquet" if _bare(path).suffix == ".parquet" else "mooncake"
    if format == "dataset":
        parquet.require()
        parts.check_place(path)
        return format
    if format == "parquet":
        parquet.require()
    if not is_std(path):
        _require_place(path)
    return format


def name_of_output(path: str | Path) -> str:
    """What messages call the file that is written."""
    return "stdout" if is_std(path) else str(path)


def told_by(keys) -> str:
    """The format that rows with these keys have: Qwen-Bailian's names its requests, and its times are seconds."""
    return "bailian" if any(mark in keys for mark in bailian.MARKS) else "mooncake"


# -- helpers -----------------------------------------------------------------------------------------------------


def _require(format, extra="keep", threads=None):
    if format not in (None, *NAMES):
        raise UsageError(f"format is {format!r}; it is one of {', '.join(NAMES)}.")
    if extra not in EXTRA:
        raise UsageError(f"extra is {extra!r}; it is one of {', '.join(EXTRA)}.")
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; it is 1 or more.")


def _holds_dataset(path) -> bool:
    """Whether a folder is, or calls itself, one of parts."""
    return parts.is_dataset(path) or parts.has_dataset_name(path)


def _require_dataset(first_id):
    """UsageError for what a folder of parts does not do."""
    if first_id:
        raise UsageError(f"the first id is {first_id:,}; a folder of parts numbers its ids from 0.")


def _require_place(path):
    folder = Path(path).parent
    if not str(path):
        raise UsageError("the output's name is empty; - is stdout.")
    if os.path.isdir(path):  # os's functions: pathlib's raise on a name too long, or in a folder that is not ours
        raise UsageError(f"{path}: is a folder; name a file in it.")
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: there is no folder {folder}.")
    if not os.access(folder, os.W_OK | os.X_OK) and is_regular(path):
        raise KvtraceError(f"{path}: no file can be made in its folder.")


def _require_same(trace, block_size, tail):
    for name, given, own in (("block_size", block_size, trace.block_size), ("tail", tail, trace.tail)):
        if given not in (None, own):
            raise UsageError(f"{name} is {given!r}, but the trace's is {own!r}. Leave it out.")


def _sidecar(found: Found, block_size, tail) -> Sidecar:
    """What the sidecar says, if it is this file's; a given block size stands in for a sidecar of another file."""
    said = found.sidecar
    if said is None:
        return Sidecar("")
    if not said.describes(found.columns):
        if block_size is None:
            raise InputError(said.mismatch(found.columns))
        return Sidecar("")
    for option, given, own in (("--block-size", block_size, said.block_size), ("--tail", tail, said.tail)):
        if given is not None and own is not None and given != own:
            larger = " (convert --fold N makes blocks larger)" if option == "--block-size" else ""
            hint = f"Leave the option out{larger}."
            raise UsageError(f"{said.path}: the sidecar says {own}, not {option} {given}. {hint}")
    return said


def _require_lengths(found: Found, block_size: int, tail: str) -> None:
    """What a Trace would refuse, told with the line."""
    columns = found.columns
    if (negative := np.flatnonzero(columns.output_length < 0)).size:
        raise found.error(negative[0], "output_length is negative.")
    if columns.output_offsets is None:
        return
    both = expected_blocks(columns.input_length + columns.output_length, block_size, tail)
    expected, blocks = both - columns.input_length // block_size, np.diff(columns.output_offsets)
    if (wrong := np.flatnonzero((blocks != 0) & (blocks != expected))).size:
        row = int(wrong[0])
        raise found.error(
            row,
            f"{blocks[row]:,} output_hash_ids; at block size {block_size} prompt and output have {expected[row]:,} "
            "after the prompt's full blocks.",
        )


def _shifted(columns: Columns, by: int) -> Columns:
    output_ids = None if columns.output_ids is None else columns.output_ids + by
    return replace_columns(columns, hash_ids=columns.hash_ids + by, output_ids=output_ids)


@contextmanager
def _blaming(said: Sidecar | None):
    """Where a sidecar's block size fits no row, the way out begins with the sidecar."""
    try:
        yield
    except RowError as error:
        if said is not None and said.path:
            error.hint = f"The sidecar says so: remove {said.path} if it is wrong. {error.hint or ''}".rstrip()
        raise


@contextmanager
def _in_file(found: Found):
    """What a Trace finds wrong with columns, told with the file's name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{found.path}: {error}") from None


def _bare(path) -> Path:
    """The path without the suffix of a packed file."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in SUFFIXES else path
