"""Raw logs to a Trace.

    logs -> pieces -> workers (parse, render, tokenise, hash) -> digests -> ids -> sort -> release profile -> Trace

The text of a few pieces is in memory at a time. A block takes 4 bytes a reference and about 40 bytes a distinct block,
and 8 more bytes a reference at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._base.errors import InputError, RowError, UsageError
from .._base.files import name_of
from .._base.options import record_of
from .._base.row_counts import RowCounts
from .._base.workers import cores, ordered_map
from ..formats.links import Links
from ..privacy.account import Account, ReleasedTrace
from ..privacy.contributors import Users
from ..privacy.linking import LinkIndex, Unreleased, links_of
from ..privacy.release_options import Counted, Profile, ProfileName, ReleaseOptions
from ..privacy.releases import ReleaseScope, release_draft, released_draft
from ..privacy.session_times import ServiceEstimate, SessionTimes
from ..privacy.steps import keep_measured
from ..privacy.trace_draft import TraceDraft
from ..trace.columns import Columns, Tail, fields_of, measured_of
from ..trace.meta import Meta, ReleaseSection, merge, shares_prefixes
from ..trace.normalise import NEWEST_FIRST
from .collector import Collector
from .encoding import Batch
from .encoding_options import EncodingOptions, OnMismatch, RenderAs
from .keys import Key
from .preparation import Inputs, Job, ReleaseSettings, empty_error, prepare
from .row_counts import Progress, RowCounter, value_notes, with_measured, with_prompts
from .tokenizer_choice import AUTO
from .usage import UsageCheck

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

SMALL = 4 << 20  # bytes; a smaller log is encoded in one process, since starting workers would take longer
REVERSED = f"the rows came {NEWEST_FIRST} and were sorted by time"


@dataclass
class AnonymizedRows:
    """The anonymised rows in output order, with their settings and counts."""

    columns: Columns
    block_size: int
    tail: str
    meta: dict[str, Any]
    counts: RowCounts
    released: Account | None = None  # the profile's steps and their costs; None if rows keep the log's order
    usage: UsageCheck = field(default_factory=UsageCheck)  # our counts of prompt tokens beside the log's

    def trace(self) -> ReleasedTrace:
        """The rows as a verified Trace, in order of time."""
        settings: dict[str, Any] = {"block_size": self.block_size, "tail": self.tail, "meta": self.meta}
        if (np.diff(self.columns.timestamp) >= 0).all():  # already in order: no second copy of the ids
            trace = ReleasedTrace(**fields_of(self.columns), **settings)
        else:
            trace = ReleasedTrace.from_columns(self.columns, **settings)
        trace.account = self.released
        return trace


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """What a run calls as it goes."""

    on_start: Callable[[Meta], None] | None = None  # the provenance of the trace, before the work
    on_note: Callable[[str], None] | None = None  # each note: on fields before the work, on rows and tokens after it
    on_progress: Callable[[Progress], None] | None = None  # after each batch
    on_reject: Callable[[RowError], None] | None = None  # the error of each bad row

    def begin(self, job: Job) -> None:
        """Pass on the provenance of the trace, and the notes on fields of the log."""
        if self.on_start:
            self.on_start(job.meta)
        for note in job.notes():
            self.note(note)

    def note(self, text: str | None) -> None:
        """Pass on a note, if there is one."""
        if text and self.on_note:
            self.on_note(text)


NO_LISTENERS: Listeners = Listeners()


def anonymize(
    inputs: Inputs,
    *,
    log_format: str = "auto",
    field_map: dict[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    tokenizer: str | None = AUTO,
    chat_template: str | Path | None = None,
    use_template: bool = True,
    generation_prompt: str | None = None,
    render_as: RenderAs = "vllm",
    request_templates: bool = False,
    block_size: int | None = None,
    outputs: bool = False,
    profile: Profile | ProfileName = "standard",
    k: int | None = None,
    k_counts: Counted | None = None,
    tail: Tail | None = None,
    time_step_ms: int | None = None,
    round_input: str | int | None = None,
    round_output: str | int | None = None,
    drop_sessions: bool | None = None,
    alike: int | None = None,
    resample: bool | None = None,
    keep_measured: Iterable[str] | None = None,
    sample_sessions: float = 1.0,
    tenant_field: str | None = None,
    isolate_tenants: bool = False,
    keep_domains: bool | None = None,
    arrivals: str | None = None,
    request_sample: float | None = None,
    service_model: ServiceEstimate | None = None,
    key: Key | None = None,
    workers: int | None = None,
    max_errors: int = 0,
    on_mismatch: OnMismatch = "stop",
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ReleasedTrace:
    """Turn raw logs into a Trace: text becomes chained block ids, hashed under a secret key.

    Args:
        inputs: A path, a directory or a glob, or several of these.
        log_format: A log format of https://github.com/kvtrace/kvtrace/blob/main/docs/ingest/logs.md; "auto" detects it
            from the first rows.
        field_map: Field to JSON path, as in {"session": "meta.conversation"}.
        time_unit: "s", "ms", "us", "ns" or "iso"; "auto" detects it from the first rows.
        allow_truncated: Accept prompts that the logger cut short.
        tokenizer: A built-in name, a tokenizer.json or its folder, or a Hugging Face id; None for logs of hashes.
            "auto" takes that of the log's model if it needs no download, else "deepseek-r1".
        chat_template: A jinja file that replaces the tokenizer's own template.
        use_template: False if prompts are already templated text.
        generation_prompt: Text that ends each prompt, instead of the template's own.
        render_as: The engine whose form of a request the chat template gets: "vllm", "sglang", or "raw" (as logged).
        request_templates: Render a request that brings its own chat template with it, in a sandbox.
        block_size: Tokens per block. The default is 512, or the block size of the hashes in the log.
        outputs: Also make ids for output blocks.
        profile: A release profile or its name; the next nine options replace single settings of it.
        k: Blocks with fewer contributors than k are split, one copy each; 1 never splits.
        k_counts: What k counts: "users", "sessions", "requests" or "auto".
        tail: The last, partial block of a prompt: "kept", "unique" or "dropped".
        time_step_ms: Times are rounded down to multiples of it; 0 keeps milliseconds.
        round_input: Round input lengths up to multiples of this many tokens, to "block", "pow2" (of blocks) or "exact".
        round_output: Round output lengths up to multiples of this many tokens, or to "pow2"; "exact" keeps them.
        drop_sessions: Leave out sessions, turns and parents.
        alike: Requests whose rounded lengths fewer contributors have are left out; 1 keeps all.
        resample: Write new requests, made of what k contributors of a random draw have in common.
        keep_measured: Measured columns to keep, from `cached_tokens`, `ttft_ms`, `e2e_ms` and `queue_ms`, where the log
            has them. By default an exact release keeps all of them, and any other keeps none.
        sample_sessions: Share of the sessions to release, each whole: above 0, at most 1.
        tenant_field: JSON path of the tenant; k then counts tenants.
        isolate_tenants: Tenants share no blocks, as in engines with a separate cache for each tenant.
        keep_domains: Write the isolation domain of each request (tenant, adapter, salt, model) as a number; ids are
            then equal in all domains. The default is the profile's: "exact" keeps them, others do not.
        arrivals: Arrival model for a log without times, as in "rate=2/s,think=30s,seed=1".
        request_sample: The share of the service's requests that the log has, if it is a sample by request: 0.01 is one
            in a hundred. Results then say that hit rates are too low.
        service_model: Estimates service times of sessions that the log did not measure (`service_model`).
        key: Key of the hash (see `load_key`). The default is random and never stored.
        workers: Processes; the default is one a core.
        max_errors: Bad rows to skip; the next one ends the run. -1 means no limit.
        on_mismatch: What happens if the log's own counts of prompt tokens differ from ours by more than 2 %, though the
            tokenizer is known to be the model's: "stop" or "warn".
        on_reject: Receives the error of each bad row.
        on_progress: Receives the progress after each batch.

    Returns:
        The trace after the steps of its release profile; its `meta` holds the contents of a sidecar file.

    Raises:
        UsageError: Options do not fit together.
        InputError: A log cannot be read, or has more than `max_errors` bad rows.
        MismatchError: The log's counts of prompt tokens contradict ours.

    >>> import json, tempfile
    >>> rows = [{"timestamp": time, "prompt": "a b c d e f g h", "output_length": 1} for time in (0, 1)]
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as log:
    ...     _ = log.write("".join(json.dumps(row) + "\\n" for row in rows)), log.flush()
    ...     anonymize(log.name, block_size=4, profile="exact")
    Trace(2 requests, 4 blocks, 2 distinct, block_size=4, tail=kept)
    """
    options = dict(locals())
    return anonymize_rows(
        inputs, record_of(EncodingOptions, options), record_of(ReleaseOptions, options), service_model=service_model,
        key=key, workers=workers, listeners=Listeners(on_reject=on_reject, on_progress=on_progress),
    ).trace()  # fmt: skip


def anonymize_rows(
    inputs: Inputs,
    encoding: EncodingOptions,
    release: ReleaseOptions,
    *,
    key: Key | None = None,
    service_model: ServiceEstimate | None = None,
    keep_order: bool = False,
    workers: int | None = None,
    checkpoint: Checkpoint | None = None,
    listeners: Listeners = NO_LISTENERS,
) -> AnonymizedRows:
    """Anonymise raw logs and return the rows with their counts.

    Args:
        inputs, encoding, release, key, service_model, workers: as in `anonymize`.
        keep_order: rows keep the order of the log; requires the profile "exact".
        checkpoint: a file of finished batches, so that the run can be resumed. It requires `key`.
        listeners: what is called as the run goes.
    """
    from .logs import sources

    if checkpoint is not None and key is None:
        raise UsageError("a checkpoint requires a key that the resumed run can use again: pass key=load_key(path).")
    job = prepare(inputs, encoding, release, key=key, service_model=service_model, keep_order=keep_order)
    listeners.begin(job)
    total = sources.total(job.sources)
    collector = Collector.of(job.recipe, job.arrival_model)
    row_counter = RowCounter(encoding.max_errors, listeners.on_reject)
    pending: deque[sources.LogPiece] = deque()  # pieces whose batches have not come back yet
    pieces = _noted(sources.pieces(job.sources), pending)
    processes = 1 if 0 < total < SMALL or not job.encoder.can_fork else workers or cores()
    if checkpoint is not None:
        checkpoint.begin(job.encoder, job.sources)
    with closing(_batches(job.encoder, pieces, processes, checkpoint)) as batches:
        for batch in batches:
            piece = pending.popleft()
            row_counter.add(batch, piece)
            collector.add(batch)
            if listeners.on_progress:
                listeners.on_progress(Progress(piece.done, total, row_counter.counts.requests, row_counter.tokens))
    is_sorted = not keep_order and collector.is_reversed
    job = checked(
        job, row_counter, listeners, is_sorted=is_sorted, sampled=release.sample_sessions != 1 or job.profile.is_sample
    )
    rows = released_rows(
        collector, job.release, row_counter.counts, keep_order=keep_order, session_share=release.sample_sessions
    )
    rows.usage = row_counter.usage
    return rows


def checked(job: Job, counter: RowCounter, listeners: Listeners, *, is_sorted: bool, sampled: bool) -> Job:
    """The job, after all rows, with the section on the log's counts of prompt tokens.

    `is_sorted`: the rows came newest first, and are sorted by time. InputError without any request; MismatchError.
    """
    if not counter.counts.requests:
        raise no_requests_error(job.sources, counter.counts)
    if is_sorted:
        listeners.note(REVERSED)
    listeners.note(counter.check_tokens(job.recipe.choice, job.recipe.options.on_mismatch))
    return job if sampled else replace(job, meta=cast(Meta, merge(job.meta, counter.usage.section())))


def released_rows(
    collector: Collector, settings: ReleaseSettings, counts: RowCounts, *, keep_order: bool, session_share: float
) -> AnonymizedRows:
    """The collected rows, after the steps of the profile or in the order of the log."""
    draft, users = collector.finish(with_prompts(settings.meta, counts), keep_order=keep_order)
    if keep_order:
        return _in_log_order(draft, settings.profile, counts)
    return _released(draft, users, settings, session_share, counts)


def linked_rows(
    collector: Collector, settings: ReleaseSettings, counts: RowCounts, *, open_index: Callable[[int], LinkIndex]
) -> tuple[AnonymizedRows, Links]:
    """As `released_rows`, for a window of a recording, with its links to the other windows.

    Args:
        open_index: Opens the numbers of the recording; receives the time of the first row, in nanoseconds.
    """
    ids = collector.identities()
    draft, users = collector.finish(with_prompts(settings.meta, counts), keep_order=False)
    before = Unreleased.of(draft, ids)
    rows = _released(draft, users, settings, 1.0, counts)
    account = rows.released
    with open_index(ids.start_ns) as index:
        contributors = None if account is None else account.contributors
        links = links_of(before, rows.trace(), index, profile=settings.profile, contributors=contributors)
    return rows, links


def no_requests_error(log_sources, counts: RowCounts) -> InputError:
    """The error for a log without a single usable request; it names the most frequent reason."""
    where = name_of(log_sources[0].path) if len(log_sources) == 1 else f"{len(log_sources)} files"
    if not counts.rows:
        return empty_error(log_sources)
    if not counts.rejected and counts.others == counts.rows:
        kinds = ", ".join(f"{count:,} {words}" for words, count in counts.left_out.items())
        return InputError(f"{where}: none of the {counts.rows:,} rows is a request with a prompt: {kinds}.")
    if not counts.rejected:
        return InputError(f"{where}: all {counts.rows:,} prompts are empty. Try --map input=FIELD.")
    reason, times = counts.reasons.most_common(1)[0]
    rows = f"{counts.rejected:,} row{'' if counts.rejected == 1 else 's'} cannot be read"
    like = f", {times:,} of them like this one" if times < counts.rejected else ", like this one" * (times > 1)
    return InputError(f"{where}: the log has no usable request. {rows}{like}: {counts.firsts[reason]}")


def _released(
    draft: TraceDraft, users: Users | None, settings: ReleaseSettings, session_share: float, counts: RowCounts
) -> AnonymizedRows:
    """The rows after the release profile."""
    whole, account = len(draft), Account(settings.profile)
    draws = session_share != 1 or settings.profile.resample  # else NumPy's random numbers need not be loaded
    rng = np.random.default_rng(settings.seed) if draws else None
    times = SessionTimes(settings.profile, settings.service_model)
    scope = ReleaseScope(users=users, session_share=session_share, rng=rng)
    if not settings.holds_hashes:
        release_draft(draft, account, scope, add_dependencies=times)
        released = draft
    else:  # an engine may have hashed blocks without their prefix
        released, account = released_draft(draft.trace(), settings.profile, scope, times)
    columns, tail = released.columns(), released.tail
    account.notes += times.notes
    account.isolated = settings.isolate_tenants
    counts.unsampled = 0 if account.resampled else whole - len(columns)
    meta = merge(draft.meta, {} if times.section is None else {"service_times": times.section})
    meta = stated(meta, account, counts, measured_of(columns))
    return AnonymizedRows(columns, draft.block_size, tail, meta, counts, account)


def stated(meta: dict[str, Any], account: Account, counts: RowCounts, measured: Collection[str]) -> dict[str, Any]:
    """The sidecar's sections after a release that kept these measured columns, and notes on them in the account.

    The counts of the whole log are left out if the release is a sample.
    """
    if not shares_prefixes(meta):
        account.drop_costs()
    account.notes += value_notes(counts) if measured else []
    meta = merge(with_measured(meta, measured), account.meta)
    return meta if account.is_sample else merge(meta, {"counts": counts.to_dict()})


def _in_log_order(draft: TraceDraft, profile: Profile, counts: RowCounts) -> AnonymizedRows:
    """The rows in the log's order. They are not a Trace, so the only release step is that of the tails."""
    draft.set_tail(profile.tail)
    draft.rows = keep_measured(draft.rows, profile)
    draft.rows.service_ms = None
    section: ReleaseSection = {"settings": profile.settings(), "sampled": False}
    meta = with_measured(draft.meta, measured_of(draft.rows))
    meta = merge(meta, {"profile": profile.name, "release": section, "counts": counts.to_dict()})
    return AnonymizedRows(draft.columns(), draft.block_size, draft.tail, meta, counts)


def _noted(pieces, pending: deque[Any]):
    """The pieces on their way to the workers; each is noted, to match it with its batch."""
    for piece in pieces:
        pending.append(piece)
        yield piece


def _batches(encoder, pieces, processes, checkpoint: Checkpoint | None) -> Generator[Batch, None, None]:
    """The batches of all pieces, in order: first those of the checkpoint, then new ones, which are appended to it."""
    if checkpoint is not None:
        for batch in checkpoint.batches():
            if next(pieces, None) is None:
                raise InputError(
                    f"the inputs have become shorter since the interrupted run. Delete {checkpoint.path} to start over."
                )
            yield batch
    for batch in ordered_map(encoder, pieces, processes):
        yield batch
        if checkpoint is not None:  # after the collector took it: a batch whose bad row ends the run is not saved
            checkpoint.append(batch)
