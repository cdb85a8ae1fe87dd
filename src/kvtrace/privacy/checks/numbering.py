"""numbering: ids count by first appearance. A raw digest depends on the content, and some can be inverted at once."""

from __future__ import annotations

from .dictionary import inverted
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

REMEDY = "Renumber the ids with `kvtrace convert`; `kvtrace anonymize` also hashes with a key."


def check(evidence: Evidence) -> Finding:
    """Look for raw digests and check the order of the distinct ids."""
    numbers = evidence.numbers
    raw, distinct = numbers.raw, numbers.distinct
    figure = {"distinct_ids": distinct, "raw_digests": len(raw), "inverted": 0, "by": {}}
    if len(raw):
        figure["by"] = by = inverted(raw)
        figure["inverted"] = sum(by.values())
        inversions = f"; a small public dictionary inverts {sum(by.values()):,} of them" if by else ""
        return failed(figure, f"{len(raw):,} of {distinct:,} ids are raw digests{inversions}.", REMEDY)
    if not numbers.in_order:
        sentence = "ids are not numbered in the order of their first appearance: their order can hide text."
        return failed(figure, sentence, REMEDY) if evidence.profile.coarsens else warned(figure, sentence, REMEDY)
    return passed(figure, f"{distinct:,} ids are numbered in the order of their first appearance.")
