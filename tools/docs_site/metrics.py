"""The table of Prometheus metrics in docs/capture/watch.md, from the rows that the code exposes (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path

from kvtrace.capture.metric_table import METRICS, Metric

PAGE = Path(__file__).resolve().parents[2] / "docs/capture/watch.md"
PLACE = re.compile(r"(<!-- metrics -->\n).*?(<!-- end -->)", re.S)


def with_table(text: str) -> str:
    """A page with the table between its two marks."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|", *map(_row, METRICS)]
    return PLACE.sub(lambda match: match[1] + "\n".join(rows) + f"\n{match[2]}", text)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.sample_name}` | {metric.kind} | {labels} | {metric.meaning} |"
