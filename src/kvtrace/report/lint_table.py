"""The table of `kvtrace lint`: a row for each finding, and what to change."""

from __future__ import annotations

from typing import Any

from .._base.tables import TextTable
from .summary import not_rendered


def table(report: Any) -> TextTable:
    """The findings of a `LintReport`, the most expensive first."""
    made = TextTable("Where prompts diverge that nearly agree")
    made.add_column("kind")
    made.add_column("position", rank=0)
    made.add_column("block", right=True, rank=3)
    made.add_column("requests", right=True, rank=1)
    made.add_column("values", right=True, rank=3)
    made.add_column("tokens lost", right=True, rank=0)
    made.add_column("of all", right=True, rank=2)
    made.add_column("what to change", dim=True, rank=2)
    for one in report.findings:
        values = f"{one.values:,}" if one.values else ""
        made.add_row(
            one.kind, one.where, f"{one.block:,}", f"{one.requests:,}", values, f"{one.tokens:,}",
            f"{100 * report.share(one):.2f} %", one.sentence,
        )  # fmt: skip
    return made


def notes(report: Any) -> list[str]:
    """The totals of a `LintReport`, in sentences."""
    total, hit, lost = report.prompt_tokens, report.hit_tokens, report.lost_tokens
    lines = [
        f"{report.requests:,} requests with {total:,} prompt tokens; an unlimited cache with blocks of "
        f"{report.block_size:,} tokens would hit {_rate(hit, total)}"
        + (f", and {_rate(min(hit + lost, total), total)} without the findings." if lost else "."),
    ]
    if not report.findings:
        lines.append("No prompts diverge in a way that is known to break sharing.")
    if report.other_tokens:
        lines.append(
            f"{report.other_requests:,} requests share {report.other_tokens:,} more tokens behind differences of no "
            "known kind, such as another question."
        )
    rendering = report.settings.get("rendering", {})
    lines += [
        f"Warning: {warning}"
        for warning in not_rendered(rendering.get("not_rendered", {}), rendering.get("unsized_media", 0))
    ]
    if note := report.settings.get("note"):
        lines.append(f"{note[0].upper()}{note[1:].rstrip('.')}.")
    if report.skipped:
        lines.append(f"{report.skipped:,} requests hold no text and were left out.")
    if report.rejected:
        lines.append(f"{report.rejected:,} bad rows were skipped.")
    return lines


def _rate(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
