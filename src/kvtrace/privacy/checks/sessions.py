"""Two checks of sessions: sessions, session_links.

* sessions: how many can be singled out by the lengths of their turns, by their pauses, and by their shape.
* session_links: links between the requests of a conversation reveal no more than their blocks do.

The simulated attacker knows one session from outside: the lengths of its turns in order, or the pauses between them in
steps of the release, or its shape (how many turns it has, and which of them waits for which). The session is singled
out if no other one is the same. A session that is singled out reveals which rows belong together, not their content.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from ...analysis.sessions import recorded_sessions
from ...trace.columns import Columns
from ...trace.dependencies import RELATIONS, Dependencies
from ...trace.trace import Trace
from .anonymity import MAX_LOCATED, group_of, numbered
from .evidence import Evidence
from .finding import Finding, failed, passed, warned


def check_sessions(evidence: Evidence) -> Finding:
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


LINKS = ("session_id", "parent_chat_id", "session", "parent")
BROKEN = ("no_parent", "later_parent", "other_session", "repeated_names", "wrong_dependencies")  # figures


def check_links(evidence: Evidence) -> Finding:
    """Count broken links, links that the profile forbids, and links that no shared block reveals."""
    columns, figure = evidence.columns, _broken(evidence)
    figure["linked_requests"] = linked = _linked(evidence)
    figure["links_without_shared_blocks"] = hidden = _links_without_shared_blocks(evidence)
    if broken := sum(figure[name] for name in BROKEN):
        return failed(
            figure,
            f"{broken:,} links between requests are broken: what a request follows or waits for does not exist, comes "
            "later or belongs to another session, or two requests have the same name.",
            "Renumber requests and parents, and remove links to requests that are not in the trace.",
        )
    domains = _domains(evidence)
    if domains is not None:
        figure["domains"] = domains
    if evidence.profile.drop_sessions and domains is not None:
        return failed(
            figure,
            f"the requests name their isolation domains ({domains:,}), but {evidence.profile.name} drops all links.",
            "Release it with `kvtrace release`, without --keep-domains.",
        )
    if evidence.profile.drop_sessions and linked:
        return failed(
            figure,
            f"{linked:,} requests have a session, a turn or something that they wait for, but {evidence.profile.name} "
            "drops all links.",
            "Release it with `kvtrace release --drop-sessions`.",
        )
    if domains is not None:
        return warned(
            figure,
            f"the requests name their isolation domains ({domains:,}): each number links all requests of a tenant, an "
            "adapter or a salt, and shows its volume, its times and its lengths.",
            "Release it without --keep-domains, or accept the risk.",
        )
    if hidden:
        return warned(
            figure,
            f"{hidden:,} requests share no block with an earlier request of their conversation: only the link "
            "connects them.",
            "Drop the links (--drop-sessions), or accept the risk.",
        )
    if not linked:
        return passed(figure, "no field links requests to each other.")
    return passed(
        figure,
        f"{linked:,} of {len(columns):,} requests name their conversation or turn; their shared blocks also reveal it.",
    )


def _broken(evidence) -> dict[str, int]:
    columns, read = evidence.columns, evidence.read_result
    figure = {"no_parent": len(read.lost_parents), "later_parent": 0, "other_session": 0,
              "repeated_names": len(read.repeated),
              "wrong_dependencies": _wrong_dependencies(columns)}  # fmt: skip
    if (parent := columns.parent) is None:
        return figure
    row = np.arange(len(parent))
    exists = (parent >= 0) & (parent < len(parent))
    figure["no_parent"] += int((parent >= len(parent)).sum() + (parent < -1).sum())
    later = exists & ((parent >= row) | (columns.timestamp[np.where(exists, parent, 0)] > columns.timestamp))
    figure["later_parent"] = int(later.sum())
    if columns.session is not None:
        other = exists & ~later & (columns.session[np.where(exists, parent, 0)] != columns.session)
        figure["other_session"] = int(other.sum())
    return figure


def _linked(evidence) -> int:
    """The number of requests with a session, a parent, a dependency, a turn after the first, or of a subagent."""
    linked = np.zeros(len(evidence.columns), dtype=bool)
    for name in LINKS:
        if (values := evidence.fields.get(name)) is not None:
            linked |= _is_other(values, -1)
    if (turn := evidence.fields.get("turn")) is not None:
        linked |= _is_other(turn, 1)
    if (agent := evidence.columns.extra.get("agent")) is not None:
        linked |= _is_other(agent, 0)
    if (waits := evidence.columns.dependencies) is not None:
        linked |= np.diff(waits.offsets) > 0
    return int(linked.sum())


def _wrong_dependencies(columns) -> int:
    """The number of dependencies on a request that comes later, is not of the same session, or is named twice."""
    if (waits := columns.dependencies) is None:
        return 0
    request, row = waits.request, waits.row
    exists = (row >= 0) & (row < request)
    wrong = ~exists
    if columns.session is not None:
        wrong |= exists & (columns.session[np.where(exists, row, 0)] != columns.session[request])
    pairs = np.stack([request, row * 2 + waits.trigger])
    return int(wrong.sum()) + pairs.shape[1] - np.unique(pairs, axis=1).shape[1]


def _domains(evidence) -> int | None:
    """The number of isolation domains that rows name; None if none does."""
    domain = evidence.columns.domain
    return None if domain is None else len(np.unique(domain[domain >= 0]))


def _is_other(values: np.ndarray, usual: int) -> np.ndarray:
    """Whether each row has a value other than `usual`."""
    if values.dtype != object:
        return values != usual
    return np.array([value is not None and value != usual for value in values.tolist()], dtype=bool)


def _links_without_shared_blocks(evidence) -> int:
    """The number of turns that do not share the first full block with the turn before them."""
    requests = evidence.requests
    turns = None if requests is None else recorded_sessions(cast(Trace, requests))  # reads sessions only
    if requests is None or turns is None:
        return 0
    row = np.flatnonzero(turns.parent >= 0)
    before = turns.parent[row]
    full = (requests.full_blocks[row] > 0) & (requests.full_blocks[before] > 0)
    row, before, first = row[full], before[full], evidence.sums.first_block
    return int((first[row] != first[before]).sum())
