"""Writing a released trace: the audit sees it before it has its name, and a data card is written beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._base.errors import AuditError
from ..formats import trace_files as formats
from ..trace.building import TraceBuilder
from ..trace.columns import Columns
from .checks import Audit, audit
from .contributors import Contributors
from .data_card import card


@dataclass(frozen=True)
class Published:
    """The files that were written, and what the audit found in the trace."""

    files: list[str]
    audit: Audit


def publish(
    columns: Columns,
    path: str | Path,
    *,
    meta: Mapping,
    contributors: Contributors | None = None,
    against=None,
    **options,
) -> Published:
    """Write a trace with its sidecar and its data card, once it has passed the audit; AuditError, status 4, if not.

    `contributors` are those that k-sharing counted; `against` is an earlier release; the options are
    those of `formats.write`.
    """
    inspect, found = _inspector(path, contributors, against)
    files = formats.write(columns, path, meta=meta, inspect=inspect, **options)
    return Published(files, found[0])


def publish_chunks(
    chunks: Iterable[Columns],
    path: str | Path,
    *,
    meta: Mapping,
    block_size: int,
    tail: str,
    format: str | None = None,
    contributors: Contributors | None = None,
    against=None,
    memory: int | None = None,
    **options,
) -> Published:
    """As `publish`, of a trace that comes in chunks, into Mooncake's rows or a folder of parts; the files are the same.

    Other formats are written from the whole, so their chunks are put together first. Ids and parents are those of the
    whole trace; `memory` is what the audit of a folder may take; the other options are those of `formats.write_chunks`.

    >>> import tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"meta": {"profile": "exact"}, "block_size": 1, "tail": "kept"}
    ...     done = publish_chunks([toy("0 1")], f"{folder}/day.dataset", **settings)
    ...     done.audit.level, sorted(os.listdir(done.files[0]))
    ('WARN', ['card.md', 'manifest.json', 'part-00000.parquet'])
    """
    format = formats.check_output(path, format)
    given: dict[str, Any] = {"meta": meta, "block_size": block_size, "tail": tail, "format": format} | options
    if format not in ("mooncake", "dataset"):
        return publish(_together(chunks), path, contributors=contributors, against=against, **given)
    inspect, found = _inspector(path, contributors, against, memory)
    files = formats.write_chunks(chunks, path, inspect=inspect, **given)
    return Published(files, found[0])


def _inspector(path, contributors, against, memory=None) -> tuple[Callable[..., str], list[Audit]]:
    """What audits a trace under its temporary name and gives its data card, and where the audit is put."""
    found: list[Audit] = []

    def inspect(part: str, description: dict) -> str:
        sidecar = None if os.path.isdir(part) else description  # a folder holds its own
        done = audit(part, sidecar=sidecar, contributors=contributors, against=against, memory=memory)
        found.append(done)
        if not done.passed:
            raise AuditError(_refusal(path, done))
        return card(done, meta=description)

    return inspect, found


def _together(chunks) -> Columns:
    whole = TraceBuilder()
    for columns in chunks:
        whole.add(columns)
    return whole.columns()


def _refusal(path, done: Audit) -> str:
    faults = [finding for finding in done.findings if finding.level == "FAIL"]
    first = faults[0]
    others = f" And {len(faults) - 1} more." if len(faults) > 1 else ""
    return (
        f"{formats.name_of_output(path)}: the audit failed, and nothing was written: check {first.number}, "
        f"{first.name}: {first.sentence}{others} {first.remedy}".rstrip()
    )
