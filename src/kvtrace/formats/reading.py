"""Read trace files of any format into a Trace. The content of the file determines its format, not its name."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np

from .._base.errors import InputError, RowError, UsageError, wrong_word
from .._base.files import name_of
from .._base.input_files import open_read
from ..trace.building import uneven_prompts
from ..trace.columns import STATED, BlockRule, Columns, replace_columns
from ..trace.invariants import BrokenRule, broken_dependencies, broken_lengths, broken_numbers, broken_rules
from ..trace.meta import PREFIXES_UNKNOWN, merge
from ..trace.trace import Trace
from . import agentic_mooncake, bailian, format_table, mooncake, parquet
from . import dataset as datasets
from .block_size import make_up_blocks, settle
from .format_table import FORMATS, format_of, require_format, require_trace
from .jsonl_read import OnError, read_rows
from .open_pieces import names_dataset
from .sidecar import ReadResult, Sidecar, read_sidecar

EXTRA = ("keep", "ignore")
TRACES = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.parquet", "*.dataset")  # traces in a folder


def read(
    path: str | Path | Trace,
    *,
    format: str | None = None,
    block_size: int | None = None,
    tail: BlockRule | None = None,
    extra: str = "keep",
    threads: int | None = None,
    add_columns: Callable[[int], dict[str, np.ndarray]] | None = None,
) -> Trace:
    """Read a trace and normalise it: rows in time order, times from 0, ids 0, 1, 2, ... (`Trace.fixes` counts changes).

    A file whose rows have lengths but no hash_ids is a trace whose shared prefixes are unknown (`meta["prefixes"]`).

    Args:
        path: a file (plain, gzip or zstd), a data set, a glob or a folder that names one trace, or `-` for stdin; a
            Trace is returned as it is.
        format: one of NAMES. By default inferred from the content.
        block_size: tokens per block. By default from the sidecar, else the only size that fits all prompts; 512 if
            the rows have no hash_ids.
        tail: kept, unique or dropped. By default from the sidecar, else inferred.
        extra: keep other fields as extra columns, or ignore them.
        threads: parser threads for JSON Lines.
        add_columns: a function of the number of rows that returns more extra columns, in the order of the file.

    Raises:
        InputError: a row is not valid; the message names its line.
        UsageError: an option is not valid, or contradicts the sidecar.
    """
    if isinstance(path, Trace):
        return _as_it_is(path, block_size, tail)
    path = trace_at(path)
    result = read_columns(path, format=format, extra=extra, threads=threads)
    _require(result, broken_lengths(result.columns))
    if result.lengths_only:
        block_size, tail = make_up_blocks(result, block_size, tail)
    rows, sidecar = result.columns, _valid_sidecar(result, block_size, tail)
    if not len(rows):
        raise InputError(f"{result.path}: the file has no requests.")
    if add_columns is not None:
        rows.extra |= add_columns(len(rows))
    block_size = sidecar.block_size if block_size is None else block_size
    is_hinted = result.sidecar and result.sidecar.block_size and (rows.input_length >= 0).all()
    with _sidecar_hint(sidecar if is_hinted else None):
        block_size, tail = settle(result, block_size, sidecar.tail if tail is None else tail)
    _require_rows(result, block_size, tail)
    if sidecar.first_id:
        rows = _shifted(rows, -sidecar.first_id)
    with _file_name_in_errors(result):
        meta = merge(sidecar.meta, {"prefixes": PREFIXES_UNKNOWN} if result.lengths_only else {})
        trace = Trace.from_columns(rows, block_size=block_size, tail=tail, meta=meta)
    trace.fixes.dangling_parents += len(result.lost_parents)
    trace.fixes.also(result.fixes)
    if tail == STATED:
        trace.fixes.more_blocks, trace.fixes.fewer_blocks = uneven_prompts(trace, block_size)
    return trace


def read_columns(
    path: str | Path,
    *,
    format: str | None = None,
    extra: str = "keep",
    threads: int | None = None,
    on_error: OnError | None = None,
) -> ReadResult:
    """Read the columns of a file without normalising them, with the line of each row and the sidecar.

    `on_error` gets the errors of unreadable rows, which are left out; without it, the first error is raised.
    """
    _require_options(format, extra, threads)
    name = name_of(path)
    if names_dataset(path, format):
        return datasets.read(path, extra=extra)
    if format == "weka" or (format is None and format_table.holds_sessions(path)):
        from . import weka

        return weka.read(path, extra=extra == "keep", on_error=on_error)
    require_trace(path)
    with open_read(path) as stream:
        if format is None and format_table.is_session(stream.peek(format_table.HEAD)[: format_table.HEAD]):  # of a pipe
            from . import weka

            return weka.read(path, stream, extra=extra == "keep", on_error=on_error)
        if format == "parquet" or (format is None and stream.peek(4)[:4] == parquet.MAGIC):
            result = parquet.read(stream, path, extra=extra)
        elif agentic_mooncake.is_of(format, stream):
            result = agentic_mooncake.read(stream, name, extra=extra, on_error=on_error)
        else:
            keep = None if extra == "keep" else {*mooncake.KEPT, *bailian.MARKS}
            rows = read_rows(stream, name, keep=keep, on_error=on_error, threads=threads)
            reader = FORMATS[format or format_of(rows.others)]
            result = reader.result_of(rows, name, on_error)
    if extra == "ignore":
        result.columns.extra = {}
    result.sidecar = read_sidecar(path) or result.sidecar
    return result


# -- helpers -----------------------------------------------------------------------------------------------------


def _as_it_is(trace: Trace, block_size: int | None, tail: BlockRule | None) -> Trace:
    for option, value, own in (("--block-size", block_size, trace.block_size), ("--tail", tail, trace.tail)):
        if value not in (None, own):
            raise UsageError(f"the trace has {own}, not {option} {value}. Omit it; trace.fold(N) merges blocks.")
    return trace


def _require_options(format, extra, threads):
    require_format(format)
    if extra not in EXTRA:
        raise wrong_word(extra, "valid for extra", EXTRA)
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}.")


def _valid_sidecar(result: ReadResult, block_size, tail) -> Sidecar:
    """The sidecar, if it describes this file; an explicit block size replaces the sidecar of another file."""
    sidecar = result.sidecar
    if sidecar is None:
        return Sidecar("")
    if not sidecar.describes(result.columns):
        if block_size is None:
            raise InputError(sidecar.mismatch(result.columns))
        return Sidecar("")
    for option, value, own in (("--block-size", block_size, sidecar.block_size), ("--tail", tail, sidecar.tail)):
        if value is not None and own is not None and value != own:
            larger = " (`kvtrace convert --fold N` merges blocks)" if option == "--block-size" else ""
            raise UsageError(f"{sidecar.path}: the {sidecar.name} states {own}, not {option} {value}. Omit it{larger}.")
    return sidecar


def _require_rows(result: ReadResult, block_size: int, tail: str) -> None:
    """RowError, with its line, for outputs, dependencies and measured numbers that a Trace would refuse."""
    rules = (rule for rule in broken_rules(result.columns, block_size, tail) if rule.rule == "output blocks")
    _require(result, chain(rules, broken_dependencies(result.columns), broken_numbers(result.columns)))


def _require(result: ReadResult, rules: Iterable[BrokenRule]) -> None:
    for rule in rules:
        if len(rule.rows):
            raise result.error(rule.rows[0], rule.message_of(int(rule.rows[0])))


def _shifted(columns: Columns, by: int) -> Columns:
    output_ids = None if columns.output_ids is None else columns.output_ids + by
    return replace_columns(columns, hash_ids=columns.hash_ids + by, output_ids=output_ids)


@contextmanager
def _sidecar_hint(sidecar: Sidecar | None):
    """Add a hint about the sidecar to an error caused by its block size."""
    try:
        yield
    except RowError as error:
        if sidecar is not None and sidecar.part:
            error.hint = f"The {sidecar.part} of the file states the block size."
        elif sidecar is not None and sidecar.path:
            hint = f"The block size is from the sidecar: delete {sidecar.path} if it is wrong."
            error.hint = f"{hint} {error.hint or ''}".rstrip()
        raise


@contextmanager
def _file_name_in_errors(result: ReadResult):
    """Add the file's name to the errors of a Trace."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{result.path}: {error}") from None


def trace_at(path: str | Path, what: str = "a path of one trace") -> str | Path:
    """The one trace that a path, a glob or a folder names.

    Args:
        path: The path, as a user writes it.
        what: What was wanted, for the message.

    Raises:
        InputError: No file matches the glob.
        UsageError: It names several traces, or it is not a path.

    >>> trace_at(["a.jsonl", "b.jsonl"])
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: a path of one trace is needed, not a list. Write rows with kvtrace.write, or with \
to_parquet of a data frame, and read the file.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"{what} is needed, not a {type(path).__name__}. Write rows with kvtrace.write, or with to_parquet of a "
            "data frame, and read the file."
        )
    if path == "-" or os.path.isfile(path):
        return path
    first, *others = traces_at(os.path.expanduser(os.fspath(path)))
    if others:
        raise UsageError(f"{path} names {len(others) + 1:,} traces, and {what} is needed. kvtrace.sweep takes several.")
    return first


def traces_at(path: str) -> list[str]:
    """The traces that a path names: those of a glob, or of a folder that is not a data set or a folder of sessions.

    Raises:
        InputError: No file matches the glob.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.jsonl", "a.jsonl", "a.jsonl.meta.json"):
    ...         open(f"{folder}/{name}", "w").close()
    ...     [os.path.basename(trace) for trace in traces_at(folder)], len(traces_at(f"{folder}/a*.jsonl"))
    (['a.jsonl', 'b.jsonl'], 1)
    """
    if os.path.isdir(path):
        inside = {name for form in TRACES for name in glob.glob(os.path.join(glob.escape(path), form))}
        return sorted(inside) if inside and not datasets.is_dataset(path) else [path]
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    matches = [
        name for name in sorted(glob.glob(path, recursive=True)) if not name.endswith((".meta.json", ".card.md"))
    ]
    if not matches:
        raise InputError(f"{path}: no trace matches this pattern.")
    return [trace for name in matches for trace in traces_at(name)]
