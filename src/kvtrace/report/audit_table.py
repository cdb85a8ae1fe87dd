"""The table of `kvtrace audit`: one row for each check, its level in colour, and the remedy if it did not pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..privacy.checks import Audit, Finding

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def table(audit: Audit, name: str) -> Table:
    """The findings of an audit, in the order of the checks."""
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
    text = Text(f"{finding.sentence[:1].upper()}{finding.sentence[1:]}")
    if finding.level != "PASS" and finding.remedy:
        text.append(f" {finding.remedy}", style="dim")
    return text
