"""k-sharing: split each block that fewer than k contributors share, so that a guess does not reveal other senders.

A block never has more contributors than its parent, so split blocks lie below shared ones and every hit stays a prefix.
"""

from __future__ import annotations

from collections.abc import Callable

from .contributors import Contributors
from .trace_draft import TraceDraft


def share_by_k(draft: TraceDraft, k: int, find: Callable[[], Contributors]) -> Contributors:
    """Split each block of 2 to k - 1 contributors, one for each of them; returns the contributors, which `find` gives.

    The blocks of one contributor are split among its members by the same rule (see contributors.py).

    Splitting changes the conversations that can be inferred from the blocks. Inferring and splitting therefore repeat
    until no block has 2 to k - 1 inferred contributors.

    >>> import numpy as np
    >>> from kvtrace.trace.building import toy
    >>> draft = TraceDraft.of(toy("0 1", "0 1", "0"))
    >>> share_by_k(draft, 3, lambda: Contributors(np.arange(3), "users")).kind, draft.trace().hash_ids
    ('users', array([0, 1, 0, 2, 0]))
    """
    while True:
        who = find()
        if not draft.blocks.split(who.contributor, k, who.member, unknown=who.unknown) or who.kind != "inferred":
            return who
