"""The page of Prometheus metrics, from the rows that the code exposes."""

from __future__ import annotations

from kvtrace.capture.metrics import METRICS, Metric

PATH = "reference/metrics.md"


def page() -> str:
    """The Markdown of the page.

    >>> "`kvtrace_possible_hit_ratio` | gauge | `span`, `per` |" in page()
    True
    """
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|", *map(_row, METRICS)]
    explained = "[Watch live traffic](../capture/watch.md#prometheus-and-grafana) explains the labels."
    return "\n".join(["# Metrics", "", explained, "", *rows]) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.sample_name}` | {metric.kind} | {labels} | {metric.meaning} |"
