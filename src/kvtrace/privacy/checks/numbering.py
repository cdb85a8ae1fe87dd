"""Check 2: ids are numbers by first appearance; a raw digest is one of content, and some can be inverted at once."""

from __future__ import annotations

from .dictionary import inverted
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

REMEDY = "Number the ids anew: `kvtrace convert` does, and `kvtrace anonymize` hashes with a key besides."


def check(there: Evidence) -> Finding:
    """The distinct ids in the order of their first appearance."""
    numbers = there.numbers
    raw, distinct = numbers.raw, numbers.distinct
    figure = {"distinct_ids": distinct, "raw_digests": len(raw), "inverted": 0, "by": {}}
    if len(raw):
        figure["by"] = by = inverted(raw)
        figure["inverted"] = sum(by.values())
        told = f"; a small public dictionary inverts {sum(by.values()):,} of them" if by else ""
        return failed(figure, f"{len(raw):,} of {distinct:,} ids are raw digests{told}.", REMEDY)
    if not numbers.in_order:
        return warned(figure, "ids are not numbered in the order in which they first appear.", REMEDY)
    return passed(figure, f"{distinct:,} ids, numbered in the order in which they first appear.")
