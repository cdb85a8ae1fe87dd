"""not_protected: what the profile does not protect, in plain words. Silence would look like safety."""

from __future__ import annotations

from ...trace.measured import measured_of
from ..unprotected import counted_kind_of, unprotected
from ..weaker_settings import refusal, weaker_settings
from .evidence import Evidence
from .finding import Finding, failed, passed, warned


def check(evidence: Evidence) -> Finding:
    """List what stays visible under the profile; fail if the settings promise less than the profile's name.

    Warn if the trace declares no profile, or is exact.
    """
    own, size = evidence.declared, evidence.block_size
    counted = None if own is None else counted_kind_of(evidence.release)
    columns = evidence.columns
    listed = unprotected(
        evidence.profile, counted, domains=columns.domain is not None, waits=columns.dependencies is not None,
        service=columns.service_ms is not None, measured=list(measured_of(columns)),
    )  # fmt: skip
    weaker = [] if own is None else weaker_settings(own, block_size=size)
    figure = {"not_protected": listed, "weaker_settings": weaker}
    sentence = f"others can still learn: {'; '.join(listed)}."
    remedy = "Release it with `kvtrace release --profile standard`."
    if own is None:
        return warned(figure, f"the trace declares no profile; {sentence}", remedy)
    if own.name == "exact" or not own.coarsens:
        return warned(figure, f"the trace is exact, for internal use only; {sentence}", remedy)
    if weaker:
        fault, remedy = refusal(own, weaker, size)
        return failed(figure, f"{fault}. {sentence[0].upper()}{sentence[1:]}", remedy)
    return passed(figure, sentence)
