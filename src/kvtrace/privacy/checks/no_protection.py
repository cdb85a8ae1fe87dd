"""Check 15: what a profile does not protect, in plain words, so that nobody takes silence for safety."""

from __future__ import annotations

from ..unprotected import unprotected, weaker_settings
from .evidence import Evidence
from .finding import Finding, passed, warned


def check(there: Evidence) -> Finding:
    """What stays visible under the profile; whether the trace declares one, and one as strong as its name."""
    own, listed = there.declared, unprotected(there.profile)
    weaker = [] if own is None else weaker_settings(own)
    figure = {"not_protected": listed, "weaker_than_its_name": weaker}
    said = f"not protected: {'; '.join(listed)}."
    remedy = "Release it with `kvtrace release --profile standard`."
    if own is None:
        return warned(figure, f"the trace declares no profile; {said}", remedy)
    if own.name == "exact" or not own.coarsens:
        return warned(figure, f"the trace is exact, for use inside the house; {said}", remedy)
    if weaker:
        told = f"declared as {own.name}, but weaker in {', '.join(weaker)}"
        return warned(figure, f"{told}; {said}", "Say so in the card.")
    return passed(figure, said)
