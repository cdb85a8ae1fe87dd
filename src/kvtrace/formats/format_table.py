"""The trace formats, and the kind of a file that is none of them.

Each format is one file of this folder, and one row of FORMATS, or of FOLDERS if it is no stream. An unexpected file is
a raw log given as a trace, a trace as a raw log, or a sidecar as either. Its first bytes decide, and only what is
certain counts: a damaged trace stays a trace, and its own error names the row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from .._base.errors import InputError, wrong_word
from .._base.files import is_regular, is_std, name_of
from .._base.input_files import open_read
from . import agentic_mooncake, bailian, dataset, mooncake, parquet

HEAD = 1 << 16  # bytes that decide
_TRACE = re.compile(rb'\s*\{[^\n]*"hash_ids"\s*:')  # a first row with block ids
_HASHES = re.compile(rb'\s*\{[^\n]*"hash_ids"\s*:\s*\[\s*"[0-9a-f]{32}"')  # of UCM: MD5, whose rows are a log
_SIDECAR = re.compile(rb'\s*\{\s*"kvtrace"\s*:\s*\{\s*"version"')
_MODEL = re.compile(rb'\s*\{\s*"schema"\s*:\s*\d+\s*,\s*"what"\s*:\s*"kvtrace ')
_PAGE = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)
_LOG = re.compile(  # fields of logs that no trace has
    rb'\s*+\[?\s*+\{[\s\S]{0,4000}?"(messages|input|prompt|prompt_token_ids|request|response|request_body|body|conversations?|choices'
    rb'|resourceSpans|attributes|run_type|traceId|event|call_type)"\s*:'
)
_FIRST_LINE = re.compile(rb"[^\n{]*")
_CELL = re.compile(rb"\b(prompt|input|completion|output|ContextTokens|Request tokens)\b", re.IGNORECASE)
_ENGINE = re.compile(rb"(?m)^[^\n{]*Received request \S+: ")
TAR = b"ustar"  # not at the beginning
OTHERS = {  # first bytes -> a kind of file that logs come in, and that must be unpacked or exported in another one
    b"PK\x03\x04": "a ZIP archive", TAR: "a tar archive", b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\0": "compressed with xz", b"7z\xbc\xaf": "a 7z archive", b"Obj\1": "an Avro file",
    b"ORC": "an ORC file", b"SQLite format 3\0": "an SQLite database",
}  # fmt: skip
_SESSION = re.compile(  # of Weka; agentic Mooncake has a schema
    rb'\s*\{(?!\s*"schema")[\s\S]*?("hash_id_scope"\s*:\s*"|"requests"\s*:\s*\[)'
)


def require_trace(path: str | Path) -> None:
    """InputError, with the command that is meant, if the file is certainly something other than a trace.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    ...     _ = file.write('{"timestamp": 0, "prompt": "Hello"}'), file.flush()
    ...     require_trace(file.name)
    Traceback (most recent call last):
    kvtrace._base.errors.InputError: ...: is a raw log, not a trace. To make a trace of it: kvtrace anonymize ...
    """
    _raise(_checked(path, _no_trace, of_table=_raw(name_of(path))))


def require_log(path: str | Path) -> None:
    """InputError, with the command that is meant, if the file is certainly something other than a raw log.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    ...     _ = file.write('{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [0]}'), file.flush()
    ...     require_log(file.name)
    Traceback (most recent call last):
    kvtrace._base.errors.InputError: ...: is a trace, not a raw log. To release it: kvtrace release ... -o TRACE
    """
    _raise(_checked(path, _no_log, of_table=None))


def is_trace(path: str | Path) -> bool:
    """Whether a file or a folder is certainly a trace: `require_log` would refuse it, or it holds sessions of Weka.

    >>> is_trace("tests/data/logs/openai.jsonl"), is_trace("-")
    (False, False)
    """
    if os.path.isdir(path):
        files = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
        return dataset.is_dataset(path) or any(map(is_session_file, files[:1]))
    head = _head(path)
    if head[:4] == parquet.MAGIC:
        return not _is_table_of_log(path, head)
    if is_session(head) or agentic_mooncake.SCHEMA.encode() in head.partition(b"\n")[0]:
        return True
    return _holds_rows(head)


def _holds_rows(head: bytes) -> bool:
    """Whether a first row has block ids and a length; a row of hashes, as an engine logs them, does not count."""
    return bool(_TRACE.match(head)) and b'"input_length"' in head and not _HASHES.match(head)


def _checked(path, check: Callable[[str, bytes], InputError | None], of_table: InputError | None):
    """The error that a check of a file's head finds, if any; `of_table` is that of a Parquet table of a log."""
    head = _head(path)
    return of_table if _is_table_of_log(path, head) else check(name_of(path), head)


def _no_trace(name, head):
    """The error for a file with this head, if it is certainly something other than a trace."""
    if companion := _companion(name, head):
        return companion
    is_hashed, first_line = _HASHES.match(head), head.lstrip().partition(b"\n")[0]
    if b"hash_ids" in first_line and b"," in first_line and first_line[:1].isalnum() and head[:4] != parquet.MAGIC:
        remedy = "A data frame writes both: to_json(orient='records', lines=True), or to_parquet."
        return InputError(f"{name}: is CSV, and a trace is JSON Lines or Parquet. {remedy}")
    if not is_hashed and (b'"hash_ids"' in head or head[:4] == parquet.MAGIC):
        return None
    if is_hashed or _LOG.match(head) or _is_table(head) or _ENGINE.search(head):
        return _raw(name)
    return None


def _raw(name) -> InputError:
    """The error for a raw log."""
    command = f"kvtrace anonymize {name} -o TRACE"
    return InputError(f"{name}: is a raw log, not a trace. To make a trace of it: {command}")


def _is_table_of_log(path, head: bytes) -> bool:
    """Whether a file with this head is a Parquet table that is not a trace, as data warehouses export logs."""
    return head[:4] == parquet.MAGIC and parquet.is_log(path)


def _is_table(head: bytes) -> bool:
    """Whether the first line has commas and a column of logs. One pattern for both could take quadratic time."""
    line = _FIRST_LINE.match(head)
    return line is not None and b"," in line[0] and _CELL.search(line[0]) is not None


def _no_log(name, head):
    """The error for a file with this head, if it is certainly something other than a raw log."""
    if companion := _companion(name, head):
        return companion
    if _holds_rows(head) or head[:4] == parquet.MAGIC:
        return InputError(f"{name}: is a trace, not a raw log. To release it: kvtrace release {name} -o TRACE")
    for mark, what in OTHERS.items():
        if head.startswith(mark) or (mark == TAR and head[257:262] == TAR):
            return InputError(
                f"{name}: is {what}. A log is JSON Lines, a JSON array or CSV, as it is or in .gz or .zst."
            )
    return None


def _raise(error: InputError | None) -> None:
    """Raise the error, if there is one, from a frame that does not hold the head of a log: trackers show variables."""
    if error is not None:
        raise error


def _companion(name, head) -> InputError | None:
    """The error for a sidecar, a data card, a model or a report: files that kvtrace writes beside traces."""
    if _SIDECAR.match(head) and b'"format_version"' in head:
        return InputError(f"{name}: is the sidecar of a trace. Give the trace itself{_trace_of(name, '.meta.json')}.")
    if head[:2] == b"# " and b"\n## Licence and citation" in head:
        return InputError(f"{name}: is the data card of a trace. Give the trace itself{_trace_of(name, '.card.md')}.")
    if _MODEL.match(head):
        return InputError(
            f"{name}: is a model, not a trace. To draw a trace from it: kvtrace synthesize {name} -o TRACE"
        )
    if _PAGE.match(head):
        return InputError(f"{name}: is an HTML page, such as kvtrace report writes. Give the trace that it shows.")
    return None


def _trace_of(name, suffix):
    """The name of the trace that a companion stands beside, in a sentence."""
    return f": {name.removesuffix(suffix)}" if name.endswith(suffix) and name != suffix else ""


def _head(path) -> bytes:
    """The first bytes of a regular file; none of a pipe, which is read once, or of a file that cannot be read."""
    if not is_regular(path):
        return b""
    try:
        with open_read(path) as stream:
            return stream.read(HEAD)
    except InputError:
        return b""  # its reader raises the error


def is_session(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a session of Weka.

    >>> is_session(b'{"id": "a", "block_size": 64, "hash_id_scope": "local"'), is_session(b'{"hash_ids": []}')
    (True, False)
    """
    return _SESSION.match(head) is not None


def holds_sessions(path: str | Path) -> bool:
    """Whether a path is read as sessions of Weka: a folder that is no data set, or a file that begins as one."""
    if is_std(path):
        return False
    return os.path.isdir(path) or is_session_file(path)


def is_session_file(path: str | Path) -> bool:
    """Whether a regular file begins as a session of Weka."""
    return is_session(_head(path))


FORMATS: dict[str, ModuleType] = {
    "mooncake": mooncake,
    "bailian": bailian,
    "agentic-mooncake": agentic_mooncake,
    "parquet": parquet,
}
FOLDERS = ("dataset", "weka")  # formats of a folder; sessions of Weka (weka.py) may also be a single file
NAMES = (*FORMATS, *FOLDERS)


def require_format(format: str | None) -> None:
    """UsageError for an unknown format; None means that the format is inferred."""
    if format not in (None, *NAMES):
        raise wrong_word(format, "a trace format", NAMES)


def format_of(keys) -> str:
    """The format of rows with these keys: those of Qwen-Bailian have request names, and times in seconds."""
    return "bailian" if any(mark in keys for mark in bailian.MARKS) else "mooncake"
