"""k_sharing: every shared block has at least k contributors.

A sender who finds their own row learns that another contributor of a shared block sent the same text, and which
rows belong to it. The check counts the contributors that the release counted, if the trace still shows them; otherwise
the next best, and the finding reports this.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from ...trace.columns import Columns
from ..contributors import WARNINGS, WORDS, Contributors, contributors
from ..profiles import counted_kind_of
from .block_feed import RequestBlocks
from .block_sums import USUAL_K
from .evidence import Evidence
from .finding import PEOPLE, Finding, failed, not_checked, passed, warned

UNDECLARED = {  # kind -> what a file shows that nothing describes; what its release counted is not known
    "sessions": "The audit counted sessions because it knows no users and no sidecar declares a release: a user with "
    "several sessions counted several times.",
    "inferred": "The audit inferred conversations from the blocks because it knows no users and no sidecar declares a "
    "release: a guess that extends another sender's prompt counted as the same conversation.",
}
STRONGER = "Name the field of the account (--map account=PATH, --tenant-field PATH; --users FILE), or accept the risk."


def check(evidence: Evidence) -> Finding:
    """Measure the share of requests with a block of 2 to k - 1 contributors."""
    if evidence.requests is None:
        return not_checked("no row is a valid request")
    profile_k, (who, certain) = evidence.profile.k, counted(evidence)
    k = profile_k if profile_k > 1 else USUAL_K
    count = evidence.contributors_up_to(k, who.contributor)
    is_exposed = exposed(evidence, ((count > 1) & (count < k)) | _split_members(evidence, who, k, count))
    figure = {
        "k": k, "counted": who.kind, "certain": certain, "exposed_requests": int(is_exposed.sum()),
        "share": float(is_exposed.mean()),
    }  # fmt: skip
    if evidence.release.get("tenants_isolated") is True and who.kind in PEOPLE:
        figure["blocks_of_several_tenants"] = several = int(np.count_nonzero(count > 1))
        if several:
            sentence = f"{several:,} blocks are shared by several users, but the release isolates tenants."
            remedy = "Release it again with the tenants as users."
            # users of one tenant may share a block; the users of a --users file are the isolated tenants
            is_failure = evidence.users is not None
            return failed(figure, sentence, remedy) if is_failure else warned(figure, sentence, remedy)
    sentence = (
        f"{is_exposed.sum():,} of {len(is_exposed):,} requests have a block shared by fewer than {k} {WORDS[who.kind]}"
    )
    if profile_k <= 1:
        return passed(figure, f"{sentence}; {evidence.profile.name} splits no blocks.")
    stand_in = "" if certain else f" {_released_contributors(evidence)} The audit counted {WORDS[who.kind]} instead."
    pass_users = "Pass --users FILE, one user per line for each row, to count the contributors of the release."
    if not is_exposed.any():
        sentence = f"no request has a block shared by fewer than {k} {WORDS[who.kind]}.{stand_in}"
        if _is_undeclared(evidence) and who.kind in UNDECLARED:
            return warned(figure, f"{sentence} {UNDECLARED[who.kind]}", pass_users)
        if weakness := WARNINGS[who.kind if certain else counted_kind_of(evidence.release) or who.kind]:
            return warned(figure, f"{sentence} This does not stop a guess: {weakness}.", STRONGER)
        return passed(figure, sentence) if certain else warned(figure, sentence, pass_users)
    if certain:
        return failed(
            figure,
            f"{sentence}: one of them can learn that another one sent the same text.",
            f"Split these blocks: `kvtrace release --k {k}`.",
        )
    return warned(figure, f"{sentence}.{stand_in}", pass_users)


def _is_undeclared(evidence: Evidence) -> bool:
    """Whether only the file itself shows its contributors: nobody names users, and no sidecar declares a release."""
    return evidence.declared is None and evidence.users is None and evidence.contributors is None


def _split_members(evidence: Evidence, who: Contributors, k: int, count: np.ndarray) -> np.ndarray:
    """Blocks of one contributor that its members should not share: of 2 to k - 1, or of any unknown ones."""
    if who.member is None:
        return np.zeros(len(count), dtype=bool)
    members = evidence.contributors_up_to(k, who.member)
    is_unknown = np.zeros(len(count), dtype=bool)

    def take(blocks: RequestBlocks):
        for numbers, offsets in blocks.segments():
            rows_are_unknown = who.contributor[blocks.requests] == who.unknown
            is_unknown[numbers[np.repeat(rows_are_unknown, np.diff(offsets))]] = True

    if who.unknown >= 0:
        evidence.feed(take)
    return (count == 1) & (members > 1) & ((members < k) | is_unknown)


def exposed(evidence: Evidence, few: np.ndarray) -> np.ndarray:
    """Whether each request has one of the marked blocks (block -> bool)."""
    assert evidence.requests is not None
    is_exposed = np.zeros(len(evidence.requests), dtype=bool)

    def take(blocks: RequestBlocks):
        for numbers, offsets in blocks.segments():
            is_exposed[np.repeat(blocks.requests, np.diff(offsets))[few[numbers]]] = True

    if few.any():
        evidence.feed(take)
    return is_exposed


def counted(evidence: Evidence) -> tuple[Contributors, bool]:
    """The contributors to count, and whether they are certainly those that the release counted."""
    requests, released = evidence.requests, evidence.release.get("k_counted")
    assert requests is not None
    if evidence.users is not None:
        return best_contributors(evidence, evidence.users), True
    if evidence.contributors is not None:
        return evidence.contributors, True
    if evidence.profile.k_counts == "requests" or (evidence.declared and released == "requests"):
        return Contributors(np.arange(len(requests)), "requests"), True
    if evidence.declared is not None and released == "inferred":
        return inferred(evidence), True
    best = best_contributors(evidence)
    if evidence.declared is None:
        return best, True
    if released == "sessions":  # Bailian's rows have no sessions: chains of parents replace them, and may be cut
        return best, best.kind == "sessions" and evidence.read_result.format != "bailian"
    return best, False


def best_contributors(evidence: Evidence, users: np.ndarray | None = None) -> Contributors:
    """The users, if any is known; else the sessions, if any is known; else inferred conversations."""
    requests = evidence.requests
    assert requests is not None
    return contributors(cast(Columns, requests), users, infer=lambda: inferred(evidence).contributor)


def inferred(evidence: Evidence) -> Contributors:
    """The conversations inferred from the blocks. Memory: 13 bytes a block and 8 a request."""
    from ..._native import sharing

    requests = evidence.requests
    assert requests is not None
    inference = sharing.Inference(len(requests), requests.tail != "dropped", evidence.numbers.distinct)

    def take(blocks: RequestBlocks):
        if len(blocks.requests):  # in time order, so they are consecutive
            inference.go_on(blocks.numbers, blocks.offsets, int(blocks.requests[0]))

    evidence.feed_in_time(take)
    return Contributors(inference.session, "inferred")


def _released_contributors(evidence) -> str:
    released = evidence.release.get("k_counted")
    if isinstance(released, str) and released in WORDS:
        return f"The release counted {WORDS[released]}, as its sidecar states; this file does not hold them."
    return "The sidecar does not state what the release counted."
