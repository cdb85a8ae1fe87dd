"""Check 4: an id that follows several others was hashed without its prefix, and shows equal texts wherever they are."""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, failed, not_made, passed


def check(there: Evidence) -> Finding:
    """Ids of prompts and outputs that follow different ids in different places."""
    trace = there.trace
    if trace is None:
        return not_made("its rows make no trace")
    if trace.is_chained:
        return passed({"ids_of_several_parents": 0}, "each id always follows the same id.")
    several = max(1, _of_several_parents(trace))
    return failed(
        {"ids_of_several_parents": several},
        f"{several:,} id{' follows' if several == 1 else 's follow'} different ids in different places: equal "
        "pieces of text can be told wherever they stand in a prompt.",
        "Chain the ids: `kvtrace convert --chain`.",
    )


def _of_several_parents(trace) -> int:
    """How many blocks of prompts have more than one parent."""
    before = np.concatenate([[-1], trace.hash_ids[:-1]])
    before[trace.offsets[:-1][np.diff(trace.offsets) > 0]] = -1
    parent = np.empty(trace.distinct, dtype=np.int64)
    parent[trace.hash_ids[::-1]] = before[::-1]
    return len(np.unique(trace.hash_ids[before != parent[trace.hash_ids]]))
