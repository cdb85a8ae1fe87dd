"""not_protected: what the profile does not protect, in plain words. Silence would look like safety."""

from __future__ import annotations

from ..unprotected import unprotected, weaker_settings
from .evidence import Evidence
from .finding import Finding, passed, warned


def check(evidence: Evidence) -> Finding:
    """List what stays visible under the profile; warn if the trace declares none, or weaker settings than its name."""
    own, listed = evidence.declared, unprotected(evidence.profile)
    weaker = [] if own is None else weaker_settings(own)
    figure = {"not_protected": listed, "weaker_settings": weaker}
    sentence = f"others can still learn: {'; '.join(listed)}."
    remedy = "Release it with `kvtrace release --profile standard`."
    if own is None:
        return warned(figure, f"the trace declares no profile; {sentence}", remedy)
    if own.name == "exact" or not own.coarsens:
        return warned(figure, f"the trace is exact, for internal use only; {sentence}", remedy)
    if weaker:
        return warned(
            figure,
            f"the trace declares {own.name} but has weaker settings ({', '.join(weaker)}); {sentence}",
            "Mention it in the data card.",
        )
    return passed(figure, sentence)
