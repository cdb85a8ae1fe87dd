"""Two checks of who can be told apart: anonymity, k_sharing.

* anonymity: how many requests are unique, and how often an attacker can single out a request that they know.
* k_sharing: every shared block has at least k known contributors.

The simulated attacker knows one request: its lengths, which they round as the release did, and its arrival time. The
candidates are all rows with these lengths whose time is within 60 s of the request's row. The request is located if it
is the only candidate. A located row reveals which rows share its prefix, not its content.

A sender who finds their own row learns that another contributor of a shared block sent the same text, and which rows
belong to it. The check counts the contributors that the release counted, if the trace still shows them; otherwise the
next best, and the finding reports this.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from ...trace.columns import Columns
from ..contributors import WARNINGS, WORDS, Contributors, contributors
from ..profiles import LARGEST, counted_kind_of
from .block_feed import RequestBlocks
from .block_sums import USUAL_K
from .evidence import Evidence
from .finding import PEOPLE, Finding, failed, not_checked, passed, warned

NEAR_MS = 60_000.0
MAX_LOCATED = 0.1  # share of located requests above which the check warns


def check_anonymity(evidence: Evidence) -> Finding:
    """Measure the shares of unique rows and of located requests."""
    requests = evidence.requests
    if requests is None:
        return not_checked("no row is a valid request", "WARN")
    lengths = group_of(numbered(requests.input_length), numbered(requests.output_length))
    located = alone_near(lengths, requests.timestamp, NEAR_MS)
    figure = {
        "alone_by_input": _alone(numbered(requests.input_length)),
        "alone_by_lengths": _alone(lengths),
        "alone_by_time_and_lengths": _alone(group_of(numbered(requests.timestamp), lengths)),
        "alone_by_structure": _alone(numbered(structure(evidence))),
        "located": located,
        "within_ms": NEAR_MS,
    }
    sentence = (
        "an observer who knows a request's lengths and its arrival time (within 60 s) can single out "
        f"{located:.1%} of the requests"
    )
    if evidence.profile.resample:
        return passed(figure, f"{NEW_ROWS}: one that fits a known request does so by chance.")
    if located > MAX_LOCATED:
        by_lengths, by_structure = figure["alone_by_lengths"], figure["alone_by_structure"]
        return warned(
            figure,
            f"{sentence}; {by_lengths:.1%} are unique by lengths, {by_structure:.1%} by sharing.",
            f"{_stronger(evidence)}, or accept the risk: a row reveals no content.",
        )
    return passed(figure, f"{sentence}.")


NEW_ROWS = "all rows are new, as the settings state, and none is a request of the log"


def _stronger(evidence: Evidence) -> str:
    """A remedy that rounds more than the profile does."""
    if evidence.profile.drop_sessions and evidence.profile.round_output == "pow2":  # strict, or coarser
        return f"Use larger time steps (--time-step {max(600, evidence.profile.time_step_ms // 100)}s)"
    return "Round lengths and times (--profile strict)"


def alone_near(group: np.ndarray, timestamp: np.ndarray, near_ms: float) -> float:
    """The share of rows with no other row of their group within `near_ms`.

    >>> alone_near(np.array([0, 0, 1, 0]), np.array([0.0, 50.0, 50.0, 200.0]), 60)
    0.5
    """
    order = np.lexsort((timestamp, group))
    group, time = group[order], timestamp[order]
    follows = (group[1:] == group[:-1]) & (time[1:] - time[:-1] <= near_ms)
    alone = np.ones(len(group), dtype=bool)
    alone[1:] &= ~follows
    alone[:-1] &= ~follows
    return _share(alone.sum(), len(alone))


def structure(evidence: Evidence) -> np.ndarray:
    """A hash of each request's sharing: how many prompts contain each of its shared blocks, in order.

    All requests that share nothing have the same hash.
    """
    assert evidence.requests is not None
    uses, shape = evidence.sums.uses.in_prompts, np.empty(len(evidence.requests), dtype=np.uint64)

    def take(blocks: RequestBlocks):
        shape[blocks.requests] = shapes(uses[blocks.numbers], blocks.offsets)

    evidence.feed(take)
    return shape.view(np.int64)


def shapes(uses: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A hash (uint64) of each row's list of uses; blocks that are used once are skipped.

    >>> same, alike, other = shapes(np.array([2, 1, 2, 1, 1, 3]), np.array([0, 2, 4, 6])).tolist()
    >>> same == alike, same == other
    (True, False)
    """
    from ..._native import numbering

    return numbering.hash_rows(uses, offsets, skip=uses < 2)


def numbered(values) -> np.ndarray:
    """A number for each distinct value."""
    from ..._native import numbering

    values = values + 0.0 if values.dtype.kind == "f" else values  # -0.0 becomes 0.0
    return numbering.renumber(np.ascontiguousarray(values).view(np.int64))[0]


def group_of(first, second) -> np.ndarray:
    """A number for each pair of numbers."""
    return numbered(first * (int(second.max(initial=0)) + 1) + second)


def _alone(group) -> float:
    return _share((np.bincount(group) == 1).sum(), len(group))


def _share(part, whole) -> float:
    return float(part / whole) if whole else 0.0


UNDECLARED = {  # kind -> what a file shows that nothing describes; what its release counted is not known
    "sessions": "The audit counted sessions because it knows no users and no sidecar declares a release: a user with "
    "several sessions counted several times.",
    "inferred": "The audit inferred conversations from the blocks because it knows no users and no sidecar declares a "
    "release: a guess that extends another sender's prompt counted as the same conversation.",
}
STRONGER = "Name the field of the account (--map account=PATH, --tenant-field PATH; --users FILE), or accept the risk."


def check_k_sharing(evidence: Evidence) -> Finding:
    """Measure the share of requests with a block of 2 to k - 1 contributors."""
    if evidence.requests is None:
        return not_checked("no row is a valid request")
    if evidence.profile.resample:  # links between rows are made by chance
        sentence = f"{NEW_ROWS}; the file alone does not show what drawn contributors have in common."
        return warned(
            {"k": evidence.profile.k, "resampled": True}, sentence, "Trust the publisher, or release it again."
        )
    profile_k, (who, certain) = evidence.profile.k, counted(evidence)
    k = profile_k if profile_k > 1 else USUAL_K
    count = evidence.contributors_up_to(min(k + 1, LARGEST), who.contributor)  # all unknown ones are one of them
    few = count - _in_requests(evidence, who.contributor == who.unknown) < k
    is_exposed = exposed(evidence, few & ((count > 1) | _split_members(evidence, who, k)))
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


def _split_members(evidence: Evidence, who: Contributors, k: int) -> np.ndarray | bool:
    """Blocks that the members of one contributor should not share: k counts fewer than k of them."""
    if who.member is None:
        return False
    members = evidence.contributors_up_to(min(k + 1, LARGEST), who.member)
    named = members - (0 if who.unnamed is None else _in_requests(evidence, who.unnamed))
    return (members > 1) & ((named < k) | _in_requests(evidence, who.contributor == who.unknown))


def _in_requests(evidence: Evidence, requests: np.ndarray) -> np.ndarray:
    """Whether each block is in any of these requests (request -> bool)."""
    is_inside = np.zeros(evidence.numbers.distinct, dtype=bool)

    def take(blocks: RequestBlocks):
        for numbers, offsets in blocks.segments():
            is_inside[numbers[np.repeat(requests[blocks.requests], np.diff(offsets))]] = True

    if requests.any():
        evidence.feed(take)
    return is_inside


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
