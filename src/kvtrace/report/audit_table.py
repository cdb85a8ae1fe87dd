"""The table of `kvtrace audit`: one row for each check, with its level, its finding and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..privacy.checks import Audit, Finding

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def table(audit: Audit, name: str) -> Table:
    """A table of the findings of an audit, in the order of the checks."""
    rows = Table(
        title=f"Audit of {name}, profile {audit.profile.name}"
        + ("" if audit.declared else " (not declared by the trace)"),
        title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    rows.add_column("", justify="right", no_wrap=True)
    for heading in ("check", "level"):
        rows.add_column(heading, no_wrap=True)
    rows.add_column("finding", overflow="fold", max_width=110)
    for finding in audit.findings:
        rows.add_row(str(finding.number), finding.name, Text(finding.level, STYLES[finding.level]), _sentence(finding))
    return rows


def _sentence(finding: Finding) -> Text:
    text = Text(f"{finding.sentence[:1].upper()}{finding.sentence[1:]}")
    if finding.level != "PASS" and finding.remedy:
        text.append(f" {finding.remedy}", style="dim")
    return text
