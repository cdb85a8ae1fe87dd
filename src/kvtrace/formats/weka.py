"""Weka's session JSON: a file for each session of an agent, or a folder of such files, plain, gzip or zstd.

Many sessions make one trace. Each session keeps its own clock, so all of them begin at their recorded `t`. Local ids are
kept apart, global ids are shared.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import InputError
from .._base.files import is_std, name_of
from .._base.input_files import open_read
from .._base.offsets import offsets_of
from .._native import ids
from ..trace.columns import Columns
from ..trace.invariants import expected_blocks
from ..trace.recorded_dependencies import recorded_dependencies
from ..trace.turns import previous_turn
from .bailian import milliseconds
from .read_result import ReadResult
from .sidecar import Sidecar
from .weka_session import GLOBAL, Session, parse_session

SUFFIX = re.compile(r"\.json(\.gz|\.zst)?\Z")
HEAD = 1 << 16
_SESSION = re.compile(rb'\s*\{[\s\S]*?("hash_id_scope"\s*:|"requests"\s*:\s*\[)')


def is_session(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a session.

    >>> is_session(b'{"id": "a", "block_size": 64, "hash_id_scope": "local"'), is_session(b'{"hash_ids": []}')
    (True, False)
    """
    return _SESSION.match(head) is not None


def names_sessions(path: str | Path) -> bool:
    """Whether a path is a folder of session files."""
    return not is_std(path) and os.path.isdir(path) and any(SUFFIX.search(name) for name in os.listdir(path))


def read(path: str | Path, *, extra: str = "keep", on_error=None) -> ReadResult:
    """Read a session, or all sessions of a folder."""
    files = [path]
    if not is_std(path) and os.path.isdir(path):
        files = [os.path.join(path, name) for name in sorted(os.listdir(path)) if SUFFIX.search(name)]
    sessions = []
    for file in files:
        with open_read(file) as stream:
            text = stream.read()
        sessions.append(parse_session(text, name_of(file)))
    return _result(sessions, name_of(path), extra)


def _result(sessions: list[Session], path: str, extra: str) -> ReadResult:
    sizes = {session.block_size for session in sessions}
    if len(sizes) > 1:
        other = next(session for session in sessions if session.block_size != sessions[0].block_size)
        raise InputError(
            f"{other.path}: block_size is {other.block_size}, but {sessions[0].block_size} in {sessions[0].path}. Read "
            "them apart."
        )
    rows = [(number, row) for number, session in enumerate(sessions) for row in session.rows]
    start = milliseconds(np.array([row.start_s for _, row in rows], dtype=np.float64))
    order = np.argsort(start, kind="stable")
    start, rows = start[order], [rows[place] for place in order.tolist()]
    session = np.array([number for number, _ in rows], dtype=np.int64)
    agent = np.array([row.agent for _, row in rows], dtype=np.int64)
    blocks = np.array([len(row.hash_ids) for _, row in rows], dtype=np.int64)
    local: dict[int, int] = {}
    parts = []
    first = 1 << 40
    for number, one in enumerate(sessions):
        local[number] = 0 if one.scope == GLOBAL else first * (number + 1)
    for number, row in rows:
        parts.append(row.hash_ids + local[number])
    hash_ids = ids.renumber(np.concatenate(parts or [np.empty(0, np.int64)]))[0]
    service = np.array([np.nan if (s := row.fields.get("api_time")) is None else s for _, row in rows], dtype=np.float64)
    names: dict[str, None] = {}
    for _, row in rows:
        names.update(dict.fromkeys(row.fields))
    kept: dict[str, Any] = {}
    for name in names:
        if name not in ("t", "in", "out", "api_time"):
            values = [row.fields.get(name) for _, row in rows]
            values = [str(v) if isinstance(v, (list, dict)) else v for v in values]
            column = np.empty(len(values), dtype=object)
            column[:] = values
            kept[name] = column
    columns = Columns(
        start,
        np.array([row.fields["in"] for _, row in rows], dtype=np.int64),
        np.array([row.fields["out"] for _, row in rows], dtype=np.int64),
        hash_ids, offsets_of(blocks), session=session,
        parent=previous_turn(session * (int(agent.max(initial=0)) + 1) + agent),
        extra={"agent": agent} | (kept if extra == "keep" else {}), service_ms=milliseconds(service),
    )  # fmt: skip
    columns.dependencies = recorded_dependencies(columns, agent)
    size = sizes.pop() if sizes else None
    fits = size is None or np.array_equal(expected_blocks(columns.input_length, size, "dropped"), blocks)
    return ReadResult(columns, path, "weka", sidecar=Sidecar(path, size, "dropped" if fits else "stated"))
