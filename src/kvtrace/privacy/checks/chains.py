"""chains: each block id always follows the same id.

An id with several predecessors was hashed without its prefix, so it reveals equal text anywhere in a prompt.
"""

from __future__ import annotations

from .evidence import Evidence
from .finding import Finding, failed, not_checked, passed


def check(evidence: Evidence) -> Finding:
    """Count the ids of prompts and outputs that follow different ids."""
    if evidence.requests is None:
        return not_checked("no row is a valid request")
    if evidence.sums.parents.are_one:
        return passed({"ids_of_several_parents": 0}, "each id always follows the same id.")
    several = max(1, evidence.sums.parents.several)
    return failed(
        {"ids_of_several_parents": several},
        f"{several:,} id{' follows' if several == 1 else 's follow'} different ids in different places: an observer "
        "can find equal text anywhere in a prompt.",
        "Chain the ids with `kvtrace convert --chain`.",
    )
