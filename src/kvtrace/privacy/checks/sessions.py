"""Check 10: what links the requests of a conversation is what blocks show anyway, or is not there at all."""

from __future__ import annotations

from typing import cast

import numpy as np

from ...analysis.sessions import recorded_sessions
from ...trace.trace import Trace
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

LINKS = ("session_id", "parent_chat_id", "session", "parent")


def check(there: Evidence) -> Finding:
    """Parents that are none, links that a profile rules out, and links that no shared block shows."""
    columns, figure = there.columns, _broken(there)
    figure["linked_requests"] = linked = _linked(there)
    figure["links_blocks_do_not_show"] = hidden = _hidden(there)
    if broken := sum(figure[name] for name in ("no_parent", "later_parent", "other_session", "repeated_names")):
        return failed(
            figure,
            f"{broken:,} links between requests are broken: parents that no row is, that come later or that belong to "
            "another session, or names borne twice.",
            "Number requests and parents anew, and drop links to rows that are not here.",
        )
    if there.profile.drop_sessions and linked:
        return failed(
            figure,
            f"{linked:,} requests are linked to a session or a turn, where {there.profile.name} drops all links.",
            "Use `kvtrace release --drop-sessions`.",
        )
    if hidden:
        return warned(
            figure,
            f"{hidden:,} requests are linked to an earlier one with which they share no block: blocks would not tell.",
            "Drop the links (--drop-sessions), or accept it.",
        )
    if not linked:
        return passed(figure, "no field links requests to each other.")
    return passed(
        figure, f"{linked:,} of {len(columns):,} requests are linked, each to an earlier one that blocks show too."
    )


def _broken(there) -> dict[str, int]:
    columns, found = there.columns, there.found
    figure = {"no_parent": len(found.lost_parents), "later_parent": 0, "other_session": 0,
              "repeated_names": len(found.repeated)}  # fmt: skip
    if (parent := columns.parent) is None:
        return figure
    rows = np.arange(len(parent))
    exists = (parent >= 0) & (parent < len(parent))
    figure["no_parent"] += int((parent >= len(parent)).sum() + (parent < -1).sum())
    later = exists & ((parent >= rows) | (columns.timestamp[np.where(exists, parent, 0)] > columns.timestamp))
    figure["later_parent"] = int(later.sum())
    if columns.session is not None:
        other = exists & ~later & (columns.session[np.where(exists, parent, 0)] != columns.session)
        figure["other_session"] = int(other.sum())
    return figure


def _linked(there) -> int:
    """Requests that a field puts into a session, behind a parent or on a later turn."""
    linked = np.zeros(len(there.columns), dtype=bool)
    for name in LINKS:
        if (values := there.fields.get(name)) is not None:
            linked |= _is_other(values, -1)
    if (turn := there.fields.get("turn")) is not None:
        linked |= _is_other(turn, 1)
    return int(linked.sum())


def _is_other(values: np.ndarray, usual: int) -> np.ndarray:
    """Where there is a value, and not the usual one."""
    if values.dtype != object:
        return values != usual
    return np.array([value is not None and value != usual for value in values.tolist()], dtype=bool)


def _hidden(there) -> int:
    """Requests that follow one of their session, both with a full block, and do not even share the first."""
    requests = there.requests
    turns = None if requests is None else recorded_sessions(cast(Trace, requests))  # it asks for sessions alone
    if requests is None or turns is None:
        return 0
    row = np.flatnonzero(turns.parent >= 0)
    before = turns.parent[row]
    full = (requests.full_blocks[row] > 0) & (requests.full_blocks[before] > 0)
    row, before, first = row[full], before[full], there.sums.first_block
    return int((first[row] != first[before]).sum())
