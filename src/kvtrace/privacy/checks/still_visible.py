"""Two checks that report what others can still learn: volume, not_protected.

* volume: the number of requests and their rate reveal the size of a service's business.
* not_protected: what the profile does not protect, in plain words. Silence would look like safety.
"""

from __future__ import annotations

from ...trace.columns import measured_of
from ...trace.meta import without_rendering_counts
from ..profiles import counted_kind_of, refusal, unprotected, weaker_settings
from .evidence import Evidence
from .finding import Finding, failed, passed, warned


def check_volume(evidence: Evidence) -> Finding:
    """Report requests and rate, and whether they are those of the whole service or of a sample."""
    time = evidence.columns.timestamp
    seconds = float(time.max() - time.min()) / 1000
    rate = len(time) / seconds if 0 < seconds < float("inf") else None
    sampled = evidence.release.get("sampled") is True
    counts = _counts_before_sampling(evidence) if sampled else []
    figure = {"requests": len(time), "requests_per_s": rate, "sampled": sampled, "counts_before_sampling": counts}
    volume = f"{len(time):,} requests" + ("" if rate is None else f", {rate:,.2f} a second")
    if evidence.profile.resample and len(time) & (len(time) - 1):
        sentence = f"{volume}: a release of new requests has a power of two of them."
        return failed(figure, sentence, "Release the log again (--profile public).")
    if counts:
        return warned(
            figure, f"{volume}, a sample; but the sidecar counts the whole trace in {', '.join(counts)}.",
            "Remove these counts from the sidecar.",
        )  # fmt: skip
    if sampled:
        return passed(figure, f"{volume}, a sample: the volume of the service is not shown.")
    return warned(
        figure, f"{volume}: the trace declares no sampling, so others can learn the volume of the service.",
        "Release a share of the sessions (--sample-sessions 0.5), or accept the risk.",
    )  # fmt: skip


def _counts_before_sampling(evidence) -> list[str]:
    """The parts of the sidecar that count requests or blocks before the sample was drawn."""
    counted = ["counts"] if isinstance(evidence.meta.get("counts"), dict) else []
    rendering = evidence.meta.get("rendering")
    if isinstance(rendering, dict) and rendering != without_rendering_counts({"rendering": rendering})["rendering"]:
        counted.append("rendering")
    return counted


def check_not_protected(evidence: Evidence) -> Finding:
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
