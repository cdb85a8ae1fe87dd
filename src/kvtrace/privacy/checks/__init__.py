"""The audit: checks that a trace file must pass before it is published, graded against the profile it declares.

A check is one row in CHECKS and one function from Evidence to a Finding: `check` in a file of its own, or
`check_NAME` beside checks of the same columns. docs/privacy/audit.md explains each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._base.options import record_of
from ..contributors import Contributors
from ..release_options import AuditOptions, ProfileName
from . import (
    anonymity,
    block_ids,
    card,
    earlier_release,
    fields,
    hidden_text,
    lengths,
    sessions,
    sidecar,
    still_visible,
    times,
)
from .block_sums import audit_memory
from .collecting import collect_evidence
from .evidence import Evidence
from .finding import Audit, Finding

__all__ = ["CHECKS", "Audit", "Evidence", "Finding", "audit", "audit_memory", "audited"]

CHECKS: dict[str, Callable[[Evidence], Finding]] = {  # name -> check, in the order of the report
    "canonical": fields.check_canonical,
    "fields": fields.check_fields,
    "numbering": block_ids.check_numbering,
    "gaps": block_ids.check_gaps,
    "chains": block_ids.check_chains,
    "tails": block_ids.check_tails,
    "block_size": block_ids.check_block_size,
    "anonymity": anonymity.check_anonymity,
    "k_sharing": anonymity.check_k_sharing,
    "times": times.check_times,
    "durations": times.check_durations,
    "measured": times.check_measured,
    "session_links": sessions.check_links,
    "sessions": sessions.check_sessions,
    "lengths": lengths.check,
    "hidden_text": hidden_text.check,
    "earlier_release": earlier_release.check,
    "sidecar": sidecar.check,
    "volume": still_visible.check_volume,
    "not_protected": still_visible.check_not_protected,
}


def audit(
    path: str | Path,
    *,
    against: str | Path | None = None,
    users: str | Path | None = None,
    profile: ProfileName | None = None,
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
    return audited(path, record_of(AuditOptions, locals()), on_step)


def audited(
    path: str | Path,
    options: AuditOptions,
    on_step: Callable[[str], None] | None = None,
    *,
    is_complete: bool = True,
) -> Audit:
    """As `audit`; before a trace `is_complete`, the files beside it are not yet there."""
    evidence = collect_evidence(path, options)
    result = _result(evidence, on_step)
    whole = card.with_card(result, evidence, lambda: _as_declared(result, evidence))
    return card.with_files_beside(whole, path, evidence) if is_complete and options.sidecar is None else whole


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
