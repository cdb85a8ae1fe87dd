"""k-sharing: split each block that fewer than k contributors share, so that a guess does not reveal other senders.

A block never has more contributors than its parent, so split blocks lie below shared ones and every hit stays a prefix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .contributors import Contributors
from .trace_draft import TraceDraft

Find = Callable[[Callable[[], np.ndarray]], Contributors]  # from a function that infers conversations


def share_by_k(draft: TraceDraft, k: int, find: Find) -> Contributors:
    """Split each block of 2 to k - 1 contributors, one for each of them; returns the contributors, which `find` gives.

    The blocks of one contributor are split among its members by the same rule (see contributors.py). `find` calls its
    argument if there is nothing to count but inferred conversations.

    >>> from kvtrace.trace.building import toy
    >>> draft = TraceDraft.of(toy("0 1", "0 1", "0"))
    >>> share_by_k(draft, 3, lambda infer: Contributors(np.arange(3), "users")).kind, draft.trace().hash_ids
    ('users', array([0, 1, 0, 2, 0]))
    """
    who = find(lambda: _split_conversations(draft, k))
    if who.kind != "inferred":
        draft.blocks.split(who.contributor, k, who.member, unknown=who.unknown)
    return who


def _split_conversations(draft: TraceDraft, k: int) -> np.ndarray:
    """Split each block of 2 to k - 1 inferred conversations; returns the conversation of each row.

    Splitting changes the conversations that can be inferred. Inferring and splitting therefore repeat until no block
    has 2 to k - 1 of them; in a chained trace of prompts, only where the last splits may have changed something.
    """
    if draft.blocks.lengths is not None:
        draft.blocks.split_conversations(k, tails=draft.tail != "dropped")
        return draft.conversations()
    while draft.blocks.split(conversation := draft.conversations(), k):
        pass
    return conversation
