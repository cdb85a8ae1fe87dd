"""What `kvtrace audit` shows: a check a row, its level in colour, and what to do where it did not pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..privacy.checks import Audit, Finding

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def table(found: Audit, name: str) -> Table:
    """The findings of an audit, in the order of their numbers."""
    shown = Table(
        title=f"Audit of {name}, as {found.profile.name}" + ("" if found.declared else " (it declares no profile)"),
        title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    shown.add_column("", justify="right", no_wrap=True)
    for head in ("check", "level"):
        shown.add_column(head, no_wrap=True)
    shown.add_column("finding", overflow="fold", max_width=110)
    for finding in found.findings:
        shown.add_row(str(finding.number), finding.name, Text(finding.level, STYLES[finding.level]), _told(finding))
    return shown


def _told(finding: Finding) -> Text:
    said = Text(f"{finding.sentence[:1].upper()}{finding.sentence[1:]}")
    if finding.level != "PASS" and finding.remedy:
        said.append(f" {finding.remedy}", style="dim")
    return said
