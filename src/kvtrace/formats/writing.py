"""Write traces in any format, with a sidecar for what rows cannot express, and a data card if there is one."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base.errors import KvtraceError, UsageError
from .._base.files import SUFFIXES, Content, is_regular, is_std, require_name
from .._base.output_files import outputs_together, temporary_folder, write_atomically, write_together
from ..trace.building import require_rule, with_whole_prompts
from ..trace.columns import STATED, BlockRule, Columns, require_trace
from ..trace.meta import shares_prefixes, with_unknown_prefixes, without_claims
from ..trace.trace import Trace
from . import dataset as datasets
from . import parquet
from .format_table import FORMATS, require_format
from .reading import read_columns
from .sidecar import Counts, describe, dump, sidecar_path

ROWS = ("mooncake", "bailian")  # formats whose rows may have lengths only
CONTENT = {"parquet": Content.PARQUET, "dataset": Content.DATASET}  # format -> content; the others are JSON lines
Inspect = Callable[..., str]  # (path, description=sidecar) -> the text of a data card


def write(
    columns: Columns,
    path: str | Path,
    *,
    format: str | None = None,
    first_id: int = 0,
    extra: bool = False,
    meta: Mapping[str, Any] | None = None,
    block_size: int | None = None,
    tail: BlockRule | None = None,
    inspect: Inspect | None = None,
) -> list[str]:
    """Write a trace with its sidecar; all files appear complete, or none does.

    The file is not audited, so its sidecar declares no release profile; a UserWarning says so if the trace declares
    one. `kvtrace.privacy.publish` writes a trace with its profile.

    Args:
        columns: a Trace, or plain columns with `block_size` and `tail`.
        path: the file; `-` is stdout. The suffixes .gz and .zst compress it.
        format: one of NAMES. By default from the name: .parquet; .dataset or a final slash for a data set; else
            mooncake.
        first_id: added to each block id.
        extra: also write extra columns that are not part of the format.
        meta: more values for the sidecar.
        block_size: tokens per block, for plain columns.
        tail: kept, unique or dropped, for plain columns.
        inspect: a function that checks the file before it gets its name. It returns the text of the data card, or
            raises, and then nothing is written.

    Returns:
        The names of the files.
    """
    if isinstance(path, Columns):
        raise UsageError("the trace comes first, then the path: kvtrace.write(trace, path).")
    require_trace(columns)
    path = os.path.expanduser(path)
    format = check_output(path, format)
    if isinstance(columns, Trace):
        _require_same(columns, block_size, tail)
        block_size, tail = columns.block_size, columns.tail
        meta = columns.meta if meta is None else with_unknown_prefixes(meta, [columns.meta])
    elif block_size is None and not is_std(path):
        raise UsageError("plain columns need a block size. Pass block_size=.")
    meta = meta if inspect else _unaudited(meta)
    if format == "agentic-mooncake" and tail == STATED:  # Dynamo takes as many ids as the tokens of a prompt need
        if not isinstance(columns, Trace):
            require_rule(tail, "agentic Mooncake")
        else:
            columns, tail = with_whole_prompts(columns), "dropped"
    if format == "dataset":
        _require_dataset(first_id)
        size = block_size or 0
        return datasets.write(columns, path, block_size=size, tail=tail or "kept", meta=meta, inspect=inspect)
    if format == "weka":
        from . import weka

        _require_no_card(inspect)
        return weka.write(columns, path, block_size=block_size or 0, first_id=first_id, extra=extra, meta=meta)
    description = describe(
        columns, block_size=block_size, tail=tail or "kept", first_id=first_id, format=format, meta=meta
    )

    rest = _without_ids(path, format, meta)

    def write_rows(stream):
        options = {} if inspect else rest
        FORMATS[format].write(stream, columns, first_id=first_id, extra=extra, description=description, **options)

    return _write_beside(path, write_rows, lambda: description, inspect, rest)


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
    """Write a trace in chunks as Mooncake's rows or as a data set; returns the names of the files.

    All chunks together are one trace: times ascend, ids count by first appearance, and either all chunks have output
    blocks or none has. Memory holds one chunk, or one part of a data set. The options are those of `write`.
    """
    check_output(path, format)
    meta = meta if inspect else _unaudited(meta)
    if format == "dataset":
        _require_dataset(first_id)
        with datasets.DatasetWriter(path, block_size=block_size, tail=tail, meta=meta, inspect=inspect) as writer:
            for columns in chunks:
                writer.add(columns)
        return [str(path)]
    counts, rest = Counts(), _without_ids(path, format, meta)

    def write_rows(stream):
        for columns in chunks:
            FORMATS[format].write(stream, columns, first_id=first_id, extra=extra, **({} if inspect else rest))
            counts.add(columns)

    def description():
        values = {"block_size": block_size, "tail": tail, "first_id": first_id, "format": format, "meta": meta}
        return describe(None, **values, counts=vars(counts))

    return _write_beside(path, write_rows, description, inspect, rest)


def check_output(path: str | Path, format: str | None = None) -> str:
    """The format that `write` will use; UsageError or KvtraceError if it cannot write there."""
    require_format(format)
    if format == "weka" or (format is None and Path(path).suffix in Content.SESSIONS.suffixes):
        return _check_weka(path)
    if format is None and datasets.has_dataset_name(path):
        format = "dataset"
    if format is None:
        format = "parquet" if _bare(path).suffix.lower() in Content.PARQUET.suffixes else "mooncake"
    require_name(path, CONTENT.get(format, Content.JSON_LINES), f"the format {format}")
    if format == "dataset":
        parquet.require()
        datasets.check_place(path)
        return format
    if format == "parquet":
        parquet.require()
    require_place(path)
    return format


def _check_weka(path) -> str:
    from . import weka

    if is_std(path) or weka.is_file_name(path):
        require_name(path, Content.JSON, "the format weka")
        require_place(path)
    else:
        require_name(path, Content.SESSIONS, "the format weka")
        weka.require_place(path)
    return "weka"


def require_place(path: str | Path) -> None:
    """UsageError or KvtraceError if no file of this name can be written."""
    folder = Path(path).parent
    if is_std(path):
        return
    if not str(path):
        raise UsageError("the output's name is empty. Name a file, or - for stdout.")
    if os.path.isdir(path):  # os.path, because pathlib raises for a name too long or a folder without permission
        raise UsageError(f"{path}: this is a folder. Name a file in it.")
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: the folder {folder} does not exist.")
    if not os.access(folder, os.W_OK | os.X_OK) and is_regular(path):
        raise KvtraceError(f"{path}: its folder is not writable.")


def card_path(path: str | Path) -> str:
    """The path of a trace file's data card.

    >>> card_path("day.jsonl")
    'day.jsonl.card.md'
    """
    return f"{path}.card.md"


def name_of_output(path: str | Path) -> str:
    """The name of an output in messages."""
    return "stdout" if is_std(path) else str(path)


# -- helpers -----------------------------------------------------------------------------------------------------


def _without_ids(path, format: str, meta: Mapping[str, Any] | None) -> dict[str, bool]:
    """The option to leave out made-up ids where no sidecar can say that shared prefixes are unknown."""
    return {"ids": False} if format in ROWS and not is_regular(path) and not shares_prefixes(meta or {}) else {}


def _write_beside(path, write_rows, description, inspect: Inspect | None, rest: dict[str, bool]) -> list[str]:
    """Write rows, then the sidecar and the card; all files get their names together."""
    if not is_regular(path):
        if inspect is None:
            with write_together(path) as (stream,):
                write_rows(stream)
        else:
            _write_inspected(path, write_rows, lambda copy: inspect(copy, description=description()), rest)
        return [name_of_output(path)]
    beside = [sidecar_path(path)] + ([card_path(path)] if inspect else [])
    with outputs_together(path, beside) as (rows, sidecar, *cards):
        write_rows(rows.stream)
        sidecar.stream.write(dump(description()))
        if inspect:
            cards[0].stream.write(inspect(rows.finish(), description=description()).encode())
    return [name_of_output(path), *beside]


def _write_inspected(path, write_rows, inspect, rest: dict[str, bool]) -> None:
    """Write and inspect a temporary file, then copy it to stdout, a pipe or a device, maybe without ids."""
    with temporary_folder() as folder:
        whole = os.path.join(folder, "trace")
        with write_atomically(whole) as stream:
            write_rows(stream)
        inspect(whole)
        with open(whole, "rb") as copy, write_atomically(path) as stream:
            if rest:
                result = read_columns(whole)
                FORMATS[result.format].write(stream, result.columns, extra=True, **rest)
            else:
                shutil.copyfileobj(copy, stream)


def _unaudited(meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The values of a sidecar for a file that was not audited."""
    if meta is None or "profile" not in meta:
        return meta
    warnings.warn(
        "the trace declares a release profile, but this file was not audited: its sidecar declares none. Use "
        "kvtrace.privacy.publish to audit and write it.",
        stacklevel=3,
    )
    return without_claims(meta)


def _require_dataset(first_id):
    """UsageError for options that a data set does not support."""
    if first_id:
        raise UsageError(f"--first-id {first_id:,} does not work for a data set: its ids count from 0.")


def _require_no_card(inspect):
    """UsageError if an audited file is to be written as sessions: they have no place for its profile."""
    if inspect:
        raise UsageError("the format weka has no sidecar for a release profile. Write another format, then convert it.")


def _require_same(trace, block_size, tail):
    for name, value, own in (("block_size", block_size, trace.block_size), ("tail", tail, trace.tail)):
        if value not in (None, own):
            raise UsageError(f"{name} is {value!r}, but the trace has {own!r}. Omit it.")


def _bare(path) -> Path:
    """The path without .gz or .zst."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in SUFFIXES else path
