"""Check 14: how many requests a service has, and how fast they come, is a figure of its business."""

from __future__ import annotations

from .evidence import Evidence
from .finding import Finding, passed, warned

BEFORE = ("as it was", "chained")  # steps of a release that come before the sample is drawn


def check(there: Evidence) -> Finding:
    """Requests and rate that the file shows, and whether they are those of the whole."""
    time = there.columns.timestamp
    seconds = float(time.max() - time.min()) / 1000
    rate = len(time) / seconds if 0 < seconds < float("inf") else None
    sampled = there.release.get("sampled") is True
    whole = _of_the_whole(there) if sampled else []
    figure = {"requests": len(time), "requests_per_s": rate, "sampled": sampled, "counts_of_the_whole": whole}
    said = f"{len(time):,} requests" + ("" if rate is None else f", {rate:,.2f} a second")
    if whole:
        return warned(
            figure, f"{said}, drawn from more; but the sidecar counts the whole: {', '.join(whole)}.",
            "Take these counts out of the sidecar.",
        )  # fmt: skip
    if sampled:
        return passed(figure, f"{said}, drawn from more: the volume of the whole is not shown.")
    return warned(
        figure, f"{said}: nobody says that they are a sample, so they show the volume of the service.",
        "Release a share of the sessions (--sample-sessions 0.5), or accept it.",
    )  # fmt: skip


def _of_the_whole(there) -> list[str]:
    """What a sidecar counts before the sample was drawn, by name."""
    found = ["counts"] if isinstance(there.meta.get("counts"), dict) else []
    costs = there.release.get("costs")
    steps = [step for step in costs if isinstance(step, dict)] if isinstance(costs, list) else []
    if any(step.get("step") in BEFORE and "blocks" in step for step in steps):
        found.append("release.costs before sampling")
    return found
