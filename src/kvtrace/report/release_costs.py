"""What is said of a release: its steps and what each cost in hits, who was counted, and the audit's verdict."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..privacy.publishing import Published
from ..privacy.releases import Account


def costs(done: Account) -> Table:
    """Each step with the block hit rate after it, without eviction, and what it cost of the rate at first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"profile {done.profile.name}", no_wrap=True)
    table.add_column("block hit rate", justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    base = done.steps[0].hits.block_hit_rate
    before = base
    for step in done.steps:
        rate = step.hits.block_hit_rate
        cost = "" if step is done.steps[0] or not base else f"{100 * (rate - before) / base:+.1f} %"
        table.add_row(step.step.label, f"{rate:.4f}", cost)
        before = rate
    return table


def notes(done: Account) -> list[str]:
    """Lines on what is weaker than it could be, and on what was left out."""
    return [f"note        {note}" for note in done.notes]


def closing(done: Account, figures: dict[str, Any], block_size: int, written: Published) -> list[str]:
    """Lines on the release, its audit and its files."""
    size = f"released    {figures['requests']:,} requests, blocks of {block_size:,} tokens"
    return [size, *notes(done), *audited(written)]


def audited(written: Published) -> list[str]:
    """The audit in a line, and the files that were written."""
    levels = [finding.level for finding in written.audit.findings]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in ("PASS", "WARN", "FAIL"))
    hint = f" (kvtrace audit {written.files[0]} shows each)" if written.files[0] != "stdout" else ""
    return [f"audit       {counts}{hint}", f"wrote       {' and '.join(written.files)}"]
