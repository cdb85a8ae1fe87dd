"""Check 8: a block that few share tells whoever sent it that somebody else did, and which of the rows are theirs.

Who counts as somebody is who the release counted, if that can be known from what is here; else the next best is
counted and the finding says so.
"""

from __future__ import annotations

import numpy as np

from ..holders import Holders, holders, inferred
from ..sharing import count_holders, exposed
from .evidence import Evidence
from .finding import Finding, failed, not_made, passed, warned

USUAL = 3  # the k that is shown where a profile has none
WORDS = {"users": "users", "sessions": "sessions", "inferred": "inferred conversations", "requests": "requests"}


def check(there: Evidence) -> Finding:
    """The share of requests that hold a block of 2 to k - 1 holders."""
    trace = there.trace
    if trace is None:
        return not_made("its rows make no trace")
    k, (who, certain) = there.profile.k, counted(there)
    shown = exposed(trace, who.holder, k if k > 1 else USUAL)
    figure = {
        "k": k if k > 1 else USUAL, "counted": who.kind, "certain": certain, "exposed_requests": int(shown.sum()),
        "share": float(shown.mean()),
    }  # fmt: skip
    said = (
        f"{shown.sum():,} of {len(shown):,} requests hold a block that fewer than {figure['k']} {WORDS[who.kind]} share"
    )
    if there.release.get("tenants_isolated") is True and who.kind == "users":
        figure["blocks_of_several_tenants"] = several = int((count_holders(trace, who.holder) > 1).sum())
        if several:
            told = f"{several:,} blocks are shared by several users, in a release that keeps tenants apart"
            remedy = "Release it again with the tenants as users."
            # users of one tenant may share; those of a file of users are who is kept apart
            return failed(figure, f"{told}.", remedy) if there.by_users else warned(figure, f"{told}.", remedy)
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


def counted(there: Evidence) -> tuple[Holders, bool]:
    """Who is counted here, and whether they are those that the release counted."""
    trace, said = there.trace, there.release.get("k_counted")
    assert trace is not None
    if there.holders is not None:
        return there.holders, True
    if there.profile.k_counts == "requests" or (there.declared and said == "requests"):
        return Holders(np.arange(len(trace)), "requests"), True
    best = holders(trace, counts="sessions")
    if there.declared is None:
        return best, True
    if said == "sessions":  # Bailian's rows do not name theirs: chains of parents stand in, which may be cut
        return best, best.kind == "sessions" and there.found.format != "bailian"
    if said == "inferred":
        return Holders(inferred(trace), "inferred"), True
    return best, False


def _missing(there) -> str:
    said = there.release.get("k_counted")
    known = isinstance(said, str) and said in WORDS
    return f"the {said} that k counted, which are not here" if known else "whoever k counted, which is not said"
