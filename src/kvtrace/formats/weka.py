"""Weka's session JSON: a file for each session of an agent, or a folder of such files, plain, gzip or zstd.

Many sessions make one trace. Each session keeps its own clock, so all begin at their recorded `t`, mostly 0. Local ids
are kept apart and global ids are shared. The fields are in weka_session.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .._base.arrays import GrowingArray
from .._base.errors import InputError, RowError, UsageError
from .._base.files import is_std, name_of
from .._base.input_files import open_read, unreadable
from .._base.output_files import OutputFolder, require_folder_place, write_together
from .._base.step_work import report_work
from ..trace.columns import Columns
from ..trace.normalise import Fixes
from . import weka_columns
from .format_table import is_session_file
from .jsonl_read import OnError
from .sidecar import ReadResult, Sidecar
from .weka_objects import SessionObjects
from .weka_session import Room, Session, moved_rows, parse_session

NAME = re.compile(r"[^.].*\.json(\.gz|\.zst)?\Z")
SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")
OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def is_file_name(path: str | Path) -> bool:
    """Whether a path has the name of a session file: .json, .json.gz or .json.zst.

    >>> is_file_name("day/a.json.gz"), is_file_name("day/")
    (True, False)
    """
    return NAME.match(os.path.basename(str(path))) is not None


def read(
    path: str | Path, stream: BufferedReader | None = None, *, extra: bool = True, on_error: OnError | None = None
) -> ReadResult:
    """Read a session, or all sessions of a folder.

    Args:
        path: A file, a folder of session files alone, or `-` for stdin.
        stream: The bytes of the file, if it is open already.
        extra: Whether to keep fields as extra columns.
        on_error: Gets an error for each file of a folder that is not valid, which is left out; without it, the first
            is raised.
    """
    name = name_of(path)
    is_folder = not is_std(path) and os.path.isdir(path)
    files = _files(path) if is_folder else [str(path)]
    sessions: list[Session] = []
    names: list[str] = []
    room = Room()
    numbers, sizes = GrowingArray(np.int32), [_size(file) for file in files]
    for place, file in enumerate(files):
        error = None
        try:
            session = _session(file, stream, room)
            _require_size(session, sessions)
        except RowError as fault:
            reason = f"{os.path.basename(file)}: {fault.reason}" if is_folder else fault.reason
            error = RowError(reason).at(name, None)
        if error is None:
            numbers.extend(session.numbers, sum(sizes) / max(1, sum(sizes[: place + 1])))
            session.numbers = session.numbers[:0].copy()  # memory holds them once
            sessions.append(session)
            names.append(os.path.basename(file))
        elif on_error is None or not is_folder:  # raised outside the handler, so that no text is its context
            raise error
        else:
            on_error(error)
        report_work(1, len(files))
    columns, section = weka_columns.columns_of(sessions, numbers.values(), names, extra=extra)
    size = sessions[0].block_size if sessions else None
    lengths_only = not any(row.has_ids for session in sessions for row in session.rows)
    tail = None if not size else "dropped" if lengths_only else weka_columns.block_rule(columns, size)
    meta = {"weka": section} if extra else {}
    sidecar = Sidecar(name, size, tail, meta=meta, part="session")
    fixes = Fixes(first_timestamp=section.get("start_ms", 0.0), rows_moved=sum(map(moved_rows, sessions)))
    return ReadResult(columns, name, "weka", sidecar=sidecar, fixes=fixes, lengths_only=lengths_only)


def write(
    columns: Columns, path: str | Path, *, block_size: int, first_id: int = 0, extra: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> list[str]:  # fmt: skip
    """Write a session as a file, or sessions as a folder of files, which appear together or not at all."""
    objects = SessionObjects(columns, block_size, meta, first_id=first_id, extra=extra)
    if is_std(path) or is_file_name(path):
        if len(objects) != 1:
            place = "stdout" if is_std(path) else path
            raise UsageError(
                f"{place}: a file holds one session, but the trace has {len(objects):,}. Name a folder, such as "
                "day.sessions."
            )
        with write_together(path) as (stream,):
            stream.write(_text(objects.object(0)))
        return ["stdout" if is_std(path) else str(path)]
    names: set[str] = set()
    with OutputFolder(path, require_place) as folder:
        for number in range(len(objects)):
            value = objects.object(number)
            with folder.file(_file_name(objects.file(number), value.get("id"), names)) as stream:
                stream.write(_text(value))
            report_work(1, len(objects))
    return [str(path)]


def require_place(path: str | Path) -> None:
    """UsageError or KvtraceError if sessions cannot be written to a folder, or would replace other files."""
    require_folder_place(
        path, _has_sessions_only, is_file=". Name a folder for the sessions, or a file such as session.json.",
        has_others="not Weka sessions. Use another name.",
    )  # fmt: skip


# -- helpers -----------------------------------------------------------------------------------------------------


def _files(folder: str | Path) -> list[str]:
    """The session files of a folder, by name; InputError if it has none, or other files."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error) from None
    sessions = [name for name in names if NAME.match(name) and os.path.isfile(os.path.join(folder, name))]
    if not sessions:
        raise InputError(
            f"{folder}: the folder is not a data set and has no Weka sessions (.json, .json.gz or .json.zst files)."
        )
    if len(sessions) < len(names):
        others = sorted(set(names) - set(sessions))
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise InputError(
            f"{folder}: a folder of Weka sessions holds only .json, .json.gz and .json.zst files. "
            f"Move {others[0]}{more} elsewhere."
        )
    return [os.path.join(folder, name) for name in sessions]


def _size(file: str) -> int:
    """The bytes of a file, 0 if they are not known."""
    try:
        return os.path.getsize(file)
    except OSError:
        return 0


def _session(file: str, stream: BufferedReader | None, room: Room) -> Session:
    """The session of a file; RowError if it is not valid or cannot be read."""
    name, reason = name_of(file), None
    try:
        with nullcontext(stream) if stream else open_read(file) as opened:
            text = opened.read()
    except InputError as error:
        reason = str(error).removeprefix(f"{name}: ")
    if reason:
        raise RowError(reason)
    return parse_session(text, room)


def _require_size(session: Session, others: list[Session]) -> None:
    if others and session.block_size != others[0].block_size:
        raise RowError(
            f"block_size is {session.block_size}, but {others[0].block_size} in the sessions before it. A trace has "
            "one block size."
        )


def _has_sessions_only(folder: str | Path) -> bool:
    """Whether a folder is empty, or all its files are sessions."""
    try:
        names = os.listdir(folder)
        return all(NAME.match(name) and is_session_file(os.path.join(folder, name)) for name in names)
    except OSError:
        return False


def _text(value: dict[str, Any]) -> bytes:
    """A session as JSON; InputError for values that JSON does not know, such as dates of a column."""
    with suppress(TypeError):
        return orjson.dumps(value, option=OPTIONS)
    raise InputError("a field of a session holds a value that JSON does not know.")


def _file_name(recorded: str | None, identifier: Any, taken: set[str]) -> str:
    """A file name without path that no other session has: the recorded one, or the session's id; always plain JSON.

    AIPerf's loader reads no other files.
    """
    recorded = recorded and re.sub(r"\.(gz|zst)\Z", "", recorded)
    stem = identifier if isinstance(identifier, str) and SAFE.fullmatch(identifier) else "session"
    name = recorded if recorded and SAFE.fullmatch(recorded) and NAME.match(recorded) else f"{stem}.json"
    stem, number = name, 1
    while name in taken:
        number += 1
        name = re.sub(r"\.json", f"-{number}.json", stem, count=1)
    taken.add(name)
    return name
