"""The tables of experiments/hints.md, in Markdown, between the marks that the page has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.hints.closed_loop import ClosedPoint
from experiments.hints.open_loop import OpenPoint


def open_table(points: Sequence[OpenPoint]) -> str:
    """One row for each policy, one column for each point: the token hit rate.

    >>> print(open_table([OpenPoint(8, 16, 25_600, {"lru": 0.95})]))
    | policy | 8 sessions, 16 contexts |
    |---|---|
    | `lru` | 0.9500 |
    """
    heads = [f"{point.sessions} sessions, {point.contexts} contexts" for point in points]
    rows = [
        [f"`{policy}`", *(f"{point.token_hit_rate[policy]:.4f}" for point in points)]
        for policy in points[0].token_hit_rate
    ]
    return table(["policy", *heads], rows)


def closed_table(points: Sequence[ClosedPoint]) -> str:
    """One row for each policy, of the points of one number of lanes, with or without DRAM."""
    heads = ["policy", "token hit rate", "TTFT mean", "TTFT p90", "sessions ended", "requests/s", "beside LRU"]
    rows = []
    for point in points:
        name = f"`{point.policy}`" + (f", fetch {point.fetch}" if point.fetch != "at arrival" else "")
        low, high = min(point.gains), max(point.gains)
        mean = sum(point.gains) / len(point.gains)
        rows.append([
            name, f"{point.token_hit_rate:.4f}", f"{point.ttft_mean_s:.2f} s", f"{point.ttft_p90_s:.2f} s",
            f"{point.sessions:.1f}", f"{point.requests_per_s:.3f}",
            f"{mean:+.1%} ({low:+.1%} to {high:+.1%})" if low != high else "",
        ])  # fmt: skip
    return table(heads, rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return text.replace("| --- | ", "|---|").replace("--- | ", "---|").replace("--- |", "---|")


def put(page: Path, tables: dict[str, str]) -> None:
    """Replace the tables of a page: each stands between `<!-- name -->` and `<!-- end -->`."""
    text = page.read_text()
    for name, content in tables.items():
        text, count = re.subn(
            rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)",
            lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}", text, flags=re.S,
        )  # fmt: skip
        if not count:
            raise ValueError(f"{page} has no mark for {name}.")
    page.write_text(text)
