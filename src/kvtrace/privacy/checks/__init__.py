"""The audit: fifteen checks of a trace file, graded against the profile it declares, before anybody else may see it.

A check is a file here and a row in CHECKS: a function from Evidence to a Finding. docs/privacy/audit.md says what each
is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..contributors import Contributors
from . import (
    anonymity,
    block_size,
    chains,
    exposure,
    fields,
    gaps,
    lengths,
    numbering,
    overlap,
    sessions,
    sidecar,
    tails,
    times,
    volume,
)
from . import (
    no_protection as unprotected,
)
from .bound import auditing
from .evidence import Evidence, gather
from .finding import Audit, Finding

__all__ = ["CHECKS", "Audit", "Evidence", "Finding", "audit", "auditing"]

CHECKS: dict[str, Callable[[Evidence], Finding]] = {  # in the order of their numbers, from 1
    "fields": fields.check,
    "numbering": numbering.check,
    "gaps": gaps.check,
    "chains": chains.check,
    "tails": tails.check,
    "block size": block_size.check,
    "anonymity sets": anonymity.check,
    "k-sharing": exposure.check,
    "times": times.check,
    "session links": sessions.check,
    "lengths": lengths.check,
    "earlier release": overlap.check,
    "sidecar": sidecar.check,
    "volume": volume.check,
    "not protected": unprotected.check,
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
) -> Audit:
    """Audit a trace file: what it shows to others, check by check, graded against its release profile.

    Args:
        path: A trace file or a data set folder.
        against: An earlier release, whose requests must not be found again in this one.
        users: A file with the user of each row, one a line.
        profile: Profile to grade against; the default is what the sidecar declares, else "standard".
        block_size: Tokens a block; the default is the sidecar's, else what the prompts imply.
        format: "mooncake", "bailian", "parquet" or "dataset"; the default is told by the content.
        sidecar: Replaces `<path>.meta.json`.
        contributors: Replaces `users`: one contributor a request, as `release` counted them.
        memory: Bytes that the audit of a data set may take.

    Returns:
        A finding for each check, and a verdict.

    Raises:
        InputError: The file cannot be read at all.
        UsageError: The audit of a data set needs more than `memory`.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = kvtrace.write(kvtrace.toy("0 1 2", "0 3", block_size=16), f"{folder}/t.jsonl")
    ...     found = audit(f"{folder}/t.jsonl")
    >>> found.level, [finding.name for finding in found.findings if finding.level == "FAIL"]
    ('FAIL', ['k-sharing', 'times'])
    """
    there = gather(
        path, against=against, users=users, profile=profile, block_size=block_size, format=format, sidecar=sidecar,
        contributors=contributors, memory=memory,
    )  # fmt: skip
    found = [
        replace(check(there), number=number, name=name) for number, (name, check) in enumerate(CHECKS.items(), start=1)
    ]
    return Audit(there.profile, there.declared, found)
