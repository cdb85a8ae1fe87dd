"""Check 4: an id that follows several others was hashed without its prefix, and shows equal texts wherever they are."""

from __future__ import annotations

from .evidence import Evidence
from .finding import Finding, failed, not_made, passed


def check(there: Evidence) -> Finding:
    """Ids of prompts and outputs that follow different ids in different places."""
    if there.requests is None:
        return not_made("its rows make no trace")
    if there.sums.parents.are_one:
        return passed({"ids_of_several_parents": 0}, "each id always follows the same id.")
    several = max(1, there.sums.parents.several)
    return failed(
        {"ids_of_several_parents": several},
        f"{several:,} id{' follows' if several == 1 else 's follow'} different ids in different places: equal "
        "pieces of text can be told wherever they stand in a prompt.",
        "Chain the ids: `kvtrace convert --chain`.",
    )
