"""Check 8: a block that few share tells whoever sent it that somebody else did, and which of the rows are theirs.

Who counts as somebody is who the release counted, if that can be known from what is here; else the next best is
counted and the finding says so.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from ...trace.trace import Trace
from ..contributors import Contributors, contributors
from .blocks import Blocks
from .bound import USUAL
from .evidence import Evidence
from .finding import Finding, failed, not_made, passed, warned
from .many import count_up_to

WORDS = {"users": "users", "sessions": "sessions", "inferred": "inferred conversations", "requests": "requests"}


def check(there: Evidence) -> Finding:
    """The share of requests that hold a block of 2 to k - 1 contributors."""
    if there.requests is None:
        return not_made("its rows make no trace")
    k, (who, certain) = there.profile.k, counted(there)
    count = count_up_to(k if k > 1 else USUAL, there.feed, who.contributor, there.sums.uses.anywhere)
    shown = exposed(there, (count > 1) & (count < (k if k > 1 else USUAL)))
    figure = {
        "k": k if k > 1 else USUAL, "counted": who.kind, "certain": certain, "exposed_requests": int(shown.sum()),
        "share": float(shown.mean()),
    }  # fmt: skip
    said = (
        f"{shown.sum():,} of {len(shown):,} requests hold a block that fewer than {figure['k']} {WORDS[who.kind]} share"
    )
    if there.release.get("tenants_isolated") is True and who.kind == "users":
        figure["blocks_of_several_tenants"] = several = int(np.count_nonzero(count > 1))
        if several:
            told = f"{several:,} blocks are shared by several users, in a release that keeps tenants apart"
            remedy = "Release it again with the tenants as users."
            # users of one tenant may share; those of a file of users are who is kept apart
            return failed(figure, f"{told}.", remedy) if there.users is not None else warned(figure, f"{told}.", remedy)
    if k <= 1:
        return passed(figure, f"{said}; {there.profile.name} splits none.")
    if not shown.any():
        stand_in = "" if certain else f"; they stand in for {_missing(there)}"
        found = f"no request holds a block that fewer than {k} {WORDS[who.kind]} share{stand_in}."
        return passed(figure, found) if certain else warned(figure, found, "Pass --users FILE to count who k counted.")
    if certain:
        return failed(figure, f"{said}.", f"Split such blocks: `kvtrace release --k {k}`.")
    return warned(
        figure,
        f"{said}; they stand in for {_missing(there)}.",
        "Pass --users FILE, a line a request, to count who k counted.",
    )


def exposed(there: Evidence, few: np.ndarray) -> np.ndarray:
    """Whether each request holds one of the blocks (block -> bool)."""
    assert there.requests is not None
    found = np.zeros(len(there.requests), dtype=bool)

    def take(blocks: Blocks):
        for numbers, offsets in blocks.parts():
            found[np.repeat(blocks.requests, np.diff(offsets))[few[numbers]]] = True

    if few.any():
        there.feed(take)
    return found


def counted(there: Evidence) -> tuple[Contributors, bool]:
    """Who is counted here, and whether they are those that the release counted."""
    requests, said = there.requests, there.release.get("k_counted")
    assert requests is not None
    if there.users is not None:
        return found_holders(there, there.users), True
    if there.contributors is not None:
        return there.contributors, True
    if there.profile.k_counts == "requests" or (there.declared and said == "requests"):
        return Contributors(np.arange(len(requests)), "requests"), True
    if there.declared is not None and said == "inferred":
        return inferred(there), True
    best = found_holders(there)
    if there.declared is None:
        return best, True
    if said == "sessions":  # Bailian's rows do not name theirs: chains of parents stand in, which may be cut
        return best, best.kind == "sessions" and there.found.format != "bailian"
    return best, False


def found_holders(there: Evidence, users: np.ndarray | None = None) -> Contributors:
    """The users, where any is known; else the sessions, if there are some; else inferred conversations."""
    requests = there.requests
    assert requests is not None
    if requests.has_sessions or (users is not None and (users >= 0).any()):
        return contributors(cast(Trace, requests), users)  # it asks for sessions alone
    return inferred(there)


def inferred(there: Evidence) -> Contributors:
    """The conversations that the blocks show: 13 bytes a block and 8 a request."""
    from ..._native import sharing

    requests = there.requests
    assert requests is not None
    found = sharing.Inference(len(requests), requests.tail != "dropped", there.numbers.distinct)

    def take(blocks: Blocks):
        if len(blocks.requests):  # which follow each other here
            found.go_on(blocks.numbers, blocks.offsets, int(blocks.requests[0]))

    there.feed_in_time(take)
    return Contributors(found.session, "inferred")


def _missing(there) -> str:
    said = there.release.get("k_counted")
    known = isinstance(said, str) and said in WORDS
    return f"the {said} that k counted, which are not here" if known else "whoever k counted, which is not said"
