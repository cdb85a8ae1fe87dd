"""What a release prints: its steps with their cost in hits, its notes, and the table of the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._base.errors import pasted
from .._base.tables import TextTable
from ..privacy.contributors import WORDS, meaning_of_k

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ..privacy.account import Account
    from ..privacy.checks import Audit, Finding
    from ..privacy.publishing import Published


COUNTED = "k_sharing: this run counted the contributors; an audit of the file alone cannot, so it warns."


def costs(account: Account) -> TextTable:
    """Each step with the block hit rate after it, without eviction, and its cost in percent of the first rate."""
    table = TextTable("")
    kind = _counted(account)
    table.add_column(f"profile {account.profile.name}" + (f", k = {account.profile.k:,} {WORDS[kind]}" if kind else ""))
    table.add_column("block hit rate", right=True)
    table.add_column("cost", right=True)
    base = account.steps[0].hits.block_hit_rate
    before = base
    for step in account.steps:
        rate = step.hits.block_hit_rate
        cost = "" if step is account.steps[0] or not base else f"{100 * (rate - before) / base:+.1f} %"
        table.add_row(step.step.label, f"{rate:.4f}", cost)
        before = rate
    return table


def notes(account: Account) -> list[str]:
    """Lines on the contributors that k counted, on weaknesses of the release, and on rows that were left out."""
    kind = _counted(account)
    counted = [f"privacy     {meaning_of_k(account.profile.k, kind)}"] if kind else []
    return counted + [f"note        {note}" for note in account.notes]


def _counted(account: Account) -> str | None:
    """The kind of contributors that k counted; None if it split nothing."""
    return account.counted if account.profile.k > 1 else None


def closing(account: Account, figures: dict[str, Any], block_size: int, written: Published) -> list[str]:
    """Lines on the release, its notes, its audit and its files."""
    size = f"released    {figures['requests']:,} requests, blocks of {block_size:,} tokens"
    return [size, *notes(account), *audited(written)]


def audited(written: Published) -> list[str]:
    """Lines on what the sidecar left out, on the audit, and on the written files."""
    alone = written.audit.of_file_alone()
    levels = [finding.level for finding in alone.findings]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in ("PASS", "WARN", "FAIL"))
    hint = f" (kvtrace audit {pasted(written.files[0])} prints each check)" if written.files[0] != "stdout" else ""
    names = "1 name or value was" if written.left_out == 1 else f"{written.left_out} names or values were"
    left_out = f"note        {names} left out of the sidecar: a published sidecar has a fixed list of keys."
    return [
        *(f"note        {sentence}" for sentence in written.losses),
        *([left_out] if written.left_out else []),
        f"audit       {counts}{hint}",
        *([] if alone.publishable else [f"note        {alone.verdict.partition(': ')[2]}"]),
        *([f"note        {COUNTED}"] if alone != written.audit else []),
        f"wrote       {' and '.join(written.files)}",
    ]


STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def audit_table(audit: Audit, name: str) -> Table:
    """The findings of an audit, in the order of the checks."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=f"Audit of {name}, graded as {audit.profile.name}" + ("" if audit.declared else " (none declared)"),
        title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for head in ("check", "level"):
        table.add_column(head, no_wrap=True)
    table.add_column("finding", overflow="fold", max_width=110)
    for finding in audit.findings:
        table.add_row(finding.name, Text(finding.level, STYLES[finding.level]), _sentence(finding))
    return table


def _sentence(finding: Finding) -> Text:
    from rich.text import Text

    text = Text(f"{finding.sentence[:1].upper()}{finding.sentence[1:]}")
    if finding.level != "PASS" and finding.remedy:
        text.append(f" {finding.remedy}", style="dim")
    return text
