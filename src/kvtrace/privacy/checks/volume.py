"""volume: the number of requests and their rate reveal the size of a service's business."""

from __future__ import annotations

from ...trace.meta import without_rendering_counts
from .evidence import Evidence
from .finding import Finding, passed, warned


def check(evidence: Evidence) -> Finding:
    """Report requests and rate, and whether they are those of the whole service or of a sample."""
    time = evidence.columns.timestamp
    seconds = float(time.max() - time.min()) / 1000
    rate = len(time) / seconds if 0 < seconds < float("inf") else None
    sampled = evidence.release.get("sampled") is True
    counts = _counts_before_sampling(evidence) if sampled else []
    figure = {"requests": len(time), "requests_per_s": rate, "sampled": sampled, "counts_before_sampling": counts}
    volume = f"{len(time):,} requests" + ("" if rate is None else f", {rate:,.2f} a second")
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
