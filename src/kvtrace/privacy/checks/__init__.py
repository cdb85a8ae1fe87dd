"""The audit: checks that a trace file must pass before it is published, graded against the profile it declares.

A check is one file in this folder and one row in CHECKS: a function from Evidence to a Finding. docs/privacy/audit.md
explains each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..contributors import Contributors
from . import (
    anonymity,
    block_size,
    canonical,
    card,
    chains,
    durations,
    earlier_release,
    fields,
    gaps,
    hidden_text,
    k_sharing,
    lengths,
    measured,
    not_protected,
    numbering,
    session_links,
    sessions,
    sidecar,
    tails,
    times,
    volume,
)
from .bound import audit_memory
from .collecting import collect_evidence
from .evidence import Evidence
from .finding import Audit, Finding

__all__ = ["CHECKS", "Audit", "Evidence", "Finding", "audit", "audit_memory"]

CHECKS: dict[str, Callable[[Evidence], Finding]] = {  # name -> check, in the order of the report
    "canonical": canonical.check,
    "fields": fields.check,
    "numbering": numbering.check,
    "gaps": gaps.check,
    "chains": chains.check,
    "tails": tails.check,
    "block_size": block_size.check,
    "anonymity": anonymity.check,
    "k_sharing": k_sharing.check,
    "times": times.check,
    "durations": durations.check,
    "measured": measured.check,
    "session_links": session_links.check,
    "sessions": sessions.check,
    "lengths": lengths.check,
    "hidden_text": hidden_text.check,
    "earlier_release": earlier_release.check,
    "sidecar": sidecar.check,
    "volume": volume.check,
    "not_protected": not_protected.check,
}


def audit(
    path: str | Path,
    *,
    against: str | Path | None = None,
    users: str | Path | None = None,
    profile: str | None = None,
    block_size: int | None = None,
    format: str | None = None,
    sidecar: dict[str, Any] | None = None,
    contributors: Contributors | None = None,
    memory: int | None = None,
    on_step: Callable[[str], None] | None = None,
    allow_measured: Iterable[str] = (),
) -> Audit:
    """Run all checks on a trace file or a data set.

    Args:
        path: the file or data set.
        against: an earlier release; the audit fails if the same requests are in both.
        users: a file with one user a line, one line for each row.
        profile: the name of the profile to grade against. By default the one that the sidecar declares, else
            `standard`.
        block_size: tokens per block. By default from the sidecar, else inferred.
        format: the trace's format. By default inferred from the content.
        sidecar: the sidecar's values, in place of `<path>.meta.json`.
        contributors: the contributor of each row, in place of `users`.
        memory: bytes that the audit of a data set may use.
        on_step: receives the name of each check before it.
        allow_measured: names of measured columns that the trace may have, in addition to those that its sidecar names.

    Raises:
        InputError: the file cannot be read at all.
        UsageError: the audit may need more than `memory`; see `audit_memory`.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = kvtrace.write(kvtrace.toy("0 1 2", "0 3", block_size=16), f"{folder}/t.jsonl")
    ...     result = audit(f"{folder}/t.jsonl")
    >>> result.level, [finding.name for finding in result.findings if finding.level == "FAIL"]
    ('FAIL', ['k_sharing', 'times'])
    """
    evidence = collect_evidence(
        path, against=against, users=users, profile=profile, block_size=block_size, format=format, sidecar=sidecar,
        contributors=contributors, memory=memory, allow_measured=allow_measured,
    )  # fmt: skip
    result = _result(evidence, on_step)
    return card.with_card(result, evidence, lambda: _as_declared(result, evidence))


def _result(evidence: Evidence, on_step: Callable[[str], None] | None = None) -> Audit:
    findings = []
    for name, check in CHECKS.items():
        if on_step:
            on_step(name)
        findings.append(replace(check(evidence), name=name))
    return Audit(evidence.profile, evidence.declared, findings)


def _as_declared(result: Audit, evidence: Evidence) -> Audit:
    """The audit against the profile that the trace declares; the card states that one."""
    if evidence.declared in (None, evidence.profile):
        return result
    other, evidence.profile = evidence.profile, evidence.declared
    try:
        return _result(evidence)
    finally:
        evidence.profile = other
