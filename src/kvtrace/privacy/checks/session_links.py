"""session_links: links between the requests of a conversation reveal no more than their blocks do."""

from __future__ import annotations

from typing import cast

import numpy as np

from ...analysis.sessions import recorded_sessions
from ...trace.trace import Trace
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

LINKS = ("session_id", "parent_chat_id", "session", "parent")
BROKEN = ("no_parent", "later_parent", "other_session", "repeated_names", "wrong_dependencies")  # figures


def check(evidence: Evidence) -> Finding:
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
