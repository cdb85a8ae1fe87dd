"""Publish a released trace: audit it under a temporary name, then write it with its sidecar and data card."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._base.errors import AuditError, UsageError
from .._base.files import NamedFile, require_distinct
from .._base.results import Result, columns_of
from ..formats import writing
from ..formats.left_out import MissingColumns
from ..formats.left_out import left_out as left_out_of
from ..trace.building import TraceBuilder
from ..trace.columns import Columns
from ..trace.meta import merge, without_rendering_counts
from ..trace.trace import Trace
from ..trace.trace_figures import figures
from .account import Numbered, ReleasedTrace
from .checks import Audit, audited
from .checks.fields import ALLOWED
from .contributors import Contributors
from .data_card import card
from .release_options import AuditOptions
from .sidecar_forms import count_private, public

TIMED = ("parquet", "dataset")  # formats with service times and dependencies


@dataclass(frozen=True, repr=False)
class Published(Result):
    """The written files, the audit of the trace, and its figures, as its sidecar states them."""

    files: list[str]
    audit: Audit
    figures: Mapping[str, Any]
    losses: Sequence[str] = ()  # columns that the format does not have, in sentences
    left_out: int = 0  # names and values of the trace's `meta` that a published sidecar cannot have

    def _headline(self) -> str:
        return f"{' and '.join(self.files)}, {self.figures['requests']:,} requests, audit={self.audit.level}"

    def to_dict(self) -> dict[str, Any]:
        """The files, the figures that the sidecar states, and the audit as `Audit.to_dict` has it."""
        return {"files": self.files, **self.figures, "audit": self.audit.to_dict()}

    def _columns(self) -> dict[str, list[Any]]:
        """One row: the figures that the sidecar states."""
        return columns_of([{"files": " and ".join(self.files), "audit": self.audit.level, **self.figures}])


def publish(
    trace: Trace | Numbered,
    path: str | Path,
    *,
    format: str | None = None,
    first_id: int = 0,
    extra: bool = False,
    contributors: Contributors | None = None,
    against: str | Path | None = None,
    memory: int | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Published:
    """Audit a released trace, and write it with its sidecar and data card if it passes.

    All files get their names together, and only after the audit. `kvtrace anonymize` and `kvtrace release` call this.

    Args:
        trace: A trace that declares a release profile, as `anonymize` and `release` return it; or the rows in a store
            that `anonymize_dataset` and `release_dataset` yield, which are streamed as Mooncake's rows or a data set.
        path: The output file; `-` is stdout.
        format: As in `write`.
        first_id: Added to each block id.
        extra: Also write extra columns that are not part of the format.
        contributors: Those that k-sharing counted; the default is the account of the trace's release, if it has one.
        against: An earlier release of the same log, which this one must not link to.
        memory: Limit of the audit of a data set, in bytes.
        on_step: Receives "audit" when the rows are written, then the name of each check before it.

    Returns:
        The names of the written files, the audit and the figures.

    Raises:
        UsageError: The trace declares no profile.
        AuditError: The trace does not keep the promises of its profile; nothing was written.

    >>> import tempfile
    >>> from kvtrace.privacy.profiles import profile
    >>> from kvtrace.privacy.releases import release
    >>> from kvtrace.trace.building import toy
    >>> released = release(toy("0 1", "0 2", block_size=16), profile("standard"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [os.path.basename(name) for name in publish(released.trace, f"{folder}/day.jsonl").files]
    ['day.jsonl', 'day.jsonl.meta.json', 'day.jsonl.card.md']
    """
    if "profile" not in trace.meta:
        raise UsageError(
            "the trace declares no release profile. Release it first: "
            "kvtrace.privacy.release(trace, kvtrace.privacy.profile('standard')).trace."
        )
    to_write: dict[str, Any] = {
        "format": format,
        "first_id": first_id,
        "extra": extra,
        "against": against,
        "on_step": on_step,
    }
    if isinstance(trace, Numbered):
        return publish_chunks(
            trace.columns(), path, meta=merge(trace.meta, {"figures": trace.figures}), block_size=trace.block_size,
            tail=trace.tail, contributors=contributors or trace.contributors(), memory=memory, **to_write,
        )  # fmt: skip
    if contributors is None and isinstance(trace, ReleasedTrace) and trace.account is not None:
        contributors = trace.account.contributors
    meta = merge(trace.meta, {"figures": figures(trace)})
    return publish_columns(trace, path, meta=meta, contributors=contributors, **to_write)


def publish_columns(
    columns: Columns,
    path: str | Path,
    *,
    meta: Mapping[str, Any],
    contributors: Contributors | None = None,
    against: str | Path | None = None,
    on_step: Callable[[str], None] | None = None,
    **options,
) -> Published:
    """Like `publish`, for columns and the values of their sidecar; the other options are those of `writing.write`."""
    format = _audited_format(path, options.get("format"))
    stated, left_out = _stated(meta, format), count_private(meta)
    inspect, audits = _inspector(path, AuditOptions(contributors=contributors, against=against), on_step)
    files = writing.write(columns, path, meta=stated, inspect=inspect, **options)
    losses = left_out_of(columns, format, extra=options.get("extra", False))
    return Published(files, audits[0], meta.get("figures", {}), losses, left_out)


def publish_chunks(
    chunks: Iterable[Columns],
    path: str | Path,
    *,
    meta: Mapping[str, Any],
    contributors: Contributors | None = None,
    against: str | Path | None = None,
    memory: int | None = None,
    on_step: Callable[[str], None] | None = None,
    **options,
) -> Published:
    """Like `publish`, for a trace in chunks; the files are the same.

    Mooncake's rows and data sets are streamed; for other formats the chunks are joined first. Ids and parents are those
    of the whole trace. `memory` limits the audit of a data set. The other options are those of `writing.write_chunks`.

    >>> import tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"meta": {"profile": "exact"}, "block_size": 1, "tail": "kept"}
    ...     published = publish_chunks([toy("0 1")], f"{folder}/day.dataset", **settings)
    ...     published.audit.level, sorted(os.listdir(published.files[0]))
    ('WARN', ['card.md', 'manifest.json', 'part-00000.parquet'])
    """
    options["format"] = format = _audited_format(path, options.get("format"))
    if format not in ("mooncake", "dataset"):
        common: dict[str, Any] = {"contributors": contributors, "against": against, "on_step": on_step}
        return publish_columns(_joined(chunks), path, meta=meta, **common, **options)
    stated, left_out = _stated(meta, format), count_private(meta)
    to_audit = AuditOptions(contributors=contributors, against=against, memory=memory)
    inspect, audits = _inspector(path, to_audit, on_step)
    left_out_columns = MissingColumns(format, extra=options.get("extra", False))
    files = writing.write_chunks(left_out_columns.watch(chunks), path, meta=stated, inspect=inspect, **options)
    return Published(files, audits[0], meta.get("figures", {}), left_out_columns.sentences(), left_out)


def _audited_format(path, format) -> str:
    """The format of an output; UsageError if the audit does not know which fields it may have."""
    format = writing.check_output(path, format)
    if format not in (*ALLOWED, "dataset"):
        raise UsageError(
            f"the audit does not read the format {format}, so no release is published in it. Publish a Parquet file or "
            "a data set, which hold all columns, and convert it where it is used."
        )
    return format


def _stated(meta: Mapping[str, Any], format: str) -> dict[str, Any]:
    """The sections of a published sidecar: none on columns that the format does not have, and of a sample no counts."""
    if (meta.get("release") or {}).get("sampled"):
        meta = without_rendering_counts(meta)
    return {name: value for name, value in public(meta).items() if name != "service_times" or format in TIMED}


def _inspector(path, options: AuditOptions, on_step=None) -> tuple[Callable[..., str], list[Audit]]:
    """A function that audits a trace under its temporary name and returns its data card; and a list for the audit."""
    if options.against is not None:
        require_distinct([NamedFile("the earlier release", options.against)], [NamedFile("the output", path)])
    audits: list[Audit] = []

    def inspect(temporary: str, description: dict[str, Any]) -> str:
        sidecar = None if os.path.isdir(temporary) else description  # a data set contains its own
        if on_step:
            on_step("audit")
        result = audited(temporary, replace(options, sidecar=sidecar), on_step, is_complete=False)
        audits.append(result)
        if not result.passed:
            raise AuditError(_refusal(path, result))
        return card(result, meta=description)

    return inspect, audits


def _joined(chunks) -> Columns:
    builder = TraceBuilder()
    for columns in chunks:
        builder.add(columns)
    return builder.columns()


def _refusal(path, result: Audit) -> str:
    failures = [finding for finding in result.findings if finding.level == "FAIL"]
    first = failures[0]
    others = f" ({len(failures) - 1} more checks failed.)" if len(failures) > 1 else ""
    return (
        f"{writing.name_of_output(path)}: the audit failed, and nothing was written. {first.name}: {first.sentence} "
        f"{first.remedy}{others}"
    )
