"""Writing a released trace: the audit sees the file before it has its name, and a data card is written beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import formats
from ..errors import AuditError
from ..trace import Columns
from .audit import Audit, audit
from .card import card
from .holders import Holders


@dataclass(frozen=True)
class Published:
    """The files that were written, and what the audit found in the trace."""

    files: list[str]
    audit: Audit


def publish(
    columns: Columns, path: str | Path, *, meta: Mapping, holders: Holders | None = None, against=None, **options
) -> Published:
    """Write a trace with its sidecar and its data card, once it has passed the audit; AuditError, status 4, if not.

    `holders` are those that k-sharing counted; `against` is an earlier release; the options are
    those of `formats.write`.
    """
    found: list[Audit] = []

    def inspect(part: str, description: dict) -> str:
        done = audit(part, sidecar=description, holders=holders, against=against)
        found.append(done)
        if not done.passed:
            raise AuditError(_refusal(path, done))
        return card(done, meta=description)

    files = formats.write(columns, path, meta=meta, inspect=inspect, **options)
    return Published(files, found[0])


def _refusal(path, done: Audit) -> str:
    faults = [finding for finding in done.findings if finding.level == "FAIL"]
    first = faults[0]
    others = f" And {len(faults) - 1} more." if len(faults) > 1 else ""
    return (
        f"{formats.name_of_output(path)}: the audit failed, and nothing was written: check {first.number}, "
        f"{first.name}: {first.sentence}{others} {first.remedy}".rstrip()
    )
