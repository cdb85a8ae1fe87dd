"""sessions: how many sessions can be singled out by the lengths of their turns, by their pauses, and by their shape.

The simulated attacker knows one session from outside: the lengths of its turns in order, or the pauses between them in
steps of the release, or its shape (how many turns it has, and which of them waits for which). The session is singled
out if no other one is the same. A session that is found reveals which rows belong together, not their content.
"""

from __future__ import annotations

import numpy as np

from ...trace.columns import Columns
from ...trace.dependencies import RELATIONS, Dependencies
from .anonymity import MAX_LOCATED, group_of, numbered
from .evidence import Evidence
from .finding import Finding, passed, warned


def check(evidence: Evidence) -> Finding:
    """Count the sessions of two or more requests that are unique, or have fewer than k - 1 that are the same."""
    columns, k = evidence.columns, max(2, evidence.profile.k)
    rows, offsets = _by_session(columns.session)
    if len(offsets) < 2:
        return passed({"sessions": 0}, "no field names a session of two or more requests.")
    if len(offsets) == 2:
        return passed({"sessions": 1}, "one session has two or more requests, so none can be told from another.")
    sequences = {
        "lengths": _lengths(columns, rows, offsets),
        "pauses": _pauses(columns, rows, offsets),
        "shape": _shape(columns, rows, offsets),
    }
    sizes = {name: _sizes(sequence) for name, sequence in sequences.items()}
    sessions = len(offsets) - 1
    figure = {
        "sessions": sessions, "k": k,
        **{f"alone_by_{name}": int((same == 1).sum()) for name, same in sizes.items()},
        **{f"below_k_by_{name}": int((same < k).sum()) for name, same in sizes.items()},
    }  # fmt: skip
    alone = {name: figure[f"alone_by_{name}"] / sessions for name in sequences}
    below = f" (and narrow {figure['below_k_by_lengths'] / sessions:.1%} to fewer than {k})" if k > 2 else ""
    sentence = (
        f"an observer who knows the lengths of a session's turns can single out {alone['lengths']:.1%} of the "
        f"{sessions:,} sessions{below}; by the pauses between the turns {alone['pauses']:.1%}; by its shape (which "
        f"turn waits for which) {alone['shape']:.1%}."
    )
    if max(alone.values()) > MAX_LOCATED:
        return warned(
            figure, sentence, "Drop the links (--drop-sessions), or accept the risk: a row reveals no content."
        )
    return passed(figure, sentence)


def _by_session(session: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows of sessions of two or more requests, session by session in order, and the offsets of the sessions."""
    if session is None:
        return np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    rows = np.flatnonzero(session >= 0)
    number = numbered(session[rows])
    turns = np.bincount(number, minlength=1)
    rows = rows[turns[number] > 1]
    rows = rows[np.argsort(session[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(session[rows], prepend=-1))
    return rows, np.append(starts, len(rows))


def _lengths(columns: Columns, rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Session -> a hash of the lengths of its turns, in order."""
    return _hashes(group_of(numbered(columns.input_length[rows]), numbered(columns.output_length[rows])), offsets)


def _pauses(columns: Columns, rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Session -> a hash of the times from each of its requests to the next."""
    pause = np.diff(columns.timestamp[rows], prepend=0.0)
    pause[offsets[:-1]] = 0.0  # the first request of a session
    return _hashes(numbered(pause), offsets)


def _shape(columns: Columns, rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Session -> a hash of its number of turns, and of which one waits for which, how."""
    waits = columns.dependencies or Dependencies.none(len(columns))
    place = np.full(len(columns), -1, dtype=np.int64)  # row -> its turn in the session
    place[rows] = np.arange(len(rows)) - np.repeat(offsets[:-1], np.diff(offsets))
    inside = place[waits.request] - place[waits.row]
    kind = (inside * 2 + waits.trigger) * len(RELATIONS) + waits.relation
    return _hashes(_hashes(kind, waits.offsets)[rows].view(np.int64), offsets)


def _hashes(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    from ..._native import numbering

    return numbering.hash_rows(values, offsets)


def _sizes(hashes: np.ndarray) -> np.ndarray:
    """Session -> the number of sessions with the same hash."""
    group = numbered(hashes)
    return np.bincount(group)[group]
