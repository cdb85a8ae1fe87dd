"""Raw logs to a trace by tasks over files, on this machine or on a Ray cluster. The trace equals `anonymize_rows`'s."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from .._base.errors import UsageError
from .._base.results import Result
from .._base.row_counts import RowCounts
from ..privacy.account import Account, Numbered
from ..privacy.numbering.run import Runner, TaskOptions, number
from ..privacy.numbering.store import Store
from ..privacy.numbering.task_plan import ENCODED, TaskPlan, cuts, in_one_process, split_by
from ..privacy.profiles import kept_measured
from ..privacy.release_options import ReleaseOptions
from ..privacy.releases import measured_notes
from ..privacy.session_times import ServiceEstimate
from ..trace.columns import MEASURED
from ..trace.trace_figures import figures
from .collector import Collector
from .encoding_options import EncodingOptions
from .encoding_tasks import (
    EncodedPartition,
    Partition,
    PartitionEncoder,
    RemoteEncoder,
    TaskCheckpoint,
    collect,
    number_domains,
    partitions_of,
    with_arrivals,
)
from .keys import Key
from .logs import sources
from .pipeline import NO_LISTENERS, Listeners, checked, released_rows, stated
from .preparation import Inputs, Job, prepare
from .row_counts import Progress, RowCounter, with_prompts
from .usage import UsageCheck

LOG_BYTES_PER_TOKEN = 4  # a lower estimate
MIN_PARTITION_BYTES, MAX_PARTITION_BYTES = 4 << 20, 256 << 20  # bytes of log that a task encodes


@dataclass(repr=False)
class AnonymizedDataset(Result):
    """A released trace in pieces, and the counts of the log's rows."""

    made: Numbered
    counts: RowCounts
    usage: UsageCheck = field(default_factory=UsageCheck)  # our counts of prompt tokens beside the log's

    def _headline(self) -> str:
        return f"{self.made._headline()}, {self.counts.rejected:,} rows rejected"

    def _columns(self) -> dict[str, list[Any]]:
        return self.made._columns() | {"rejected": [self.counts.rejected]}


@contextmanager
def anonymize_dataset(
    inputs: Inputs,
    encoding: EncodingOptions,
    release: ReleaseOptions,
    *,
    tasks: TaskOptions,
    key: Key | None = None,
    service_model: ServiceEstimate | None = None,
    keep_order: bool = False,
    checkpoint: TaskCheckpoint | None = None,
    listeners: Listeners = NO_LISTENERS,
) -> Iterator[AnonymizedDataset]:
    """Anonymise raw logs by tasks of a runner, in bounded memory; the trace is that of `anonymize`.

    Args:
        inputs: Paths, directories or globs of files that can be read more than once.
        encoding, release: How rows become blocks, and what is coarsened; `anonymize` describes their fields.
        tasks: Where tasks run, and how much they hold.
        key, service_model: As in `anonymize`.
        keep_order: Rows keep the order of the log; requires the profile "exact".
        checkpoint: Records the encoded partitions, so that the run can be resumed. It requires `key`, and keeps the
            folder of the tasks.
        listeners: What is called as the run goes.

    One process must see all rows to keep the order of the log, to draw a sample, to chain the hashes of an engine, to
    add up delays, and to infer conversations for k-sharing. Tasks then only encode the log, and this process holds its
    rows as `anonymize` does: 12 bytes a block reference and 40 a distinct block.

    Yields:
        The released rows in pieces, their figures, and the counts of the log's rows.

    Raises:
        UsageError: Options do not fit together, or the rows need more than `memory`.
        InputError: A log cannot be read, or has more than `max_errors` bad rows.
        MismatchError: The log's counts of prompt tokens contradict ours.

    >>> import json, pathlib, tempfile, kvtrace
    >>> rows = [{"timestamp": time, "prompt": "a b c d e f g h", "output_length": 1} for time in (0, 1)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(f"{folder}/log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    ...     encoding = kvtrace.ingest.EncodingOptions(block_size=4)
    ...     release = kvtrace.privacy.ReleaseOptions(profile="exact")
    ...     tasks = kvtrace.privacy.TaskOptions(kvtrace.privacy.LocalRunner(1), f"{folder}/work")
    ...     with anonymize_dataset(f"{folder}/log.jsonl", encoding, release, tasks=tasks) as dataset:
    ...         dataset.made.figures["distinct_blocks"]
    2
    """
    job = prepare(inputs, encoding, release, key=key, service_model=service_model, keep_order=keep_order)
    _check_sources(job)
    runner = tasks.runner
    if runner.is_far and tasks.key_file is None:
        raise UsageError("tasks on other hosts require --key-file: each host reads the key from its own copy.")
    listeners.begin(job)
    row_counter, total = RowCounter(encoding.max_errors, listeners.on_reject), sources.total(job.sources)
    session_share = release.sample_sessions
    is_chained = job.recipe.reader.block_size is None  # an engine may have hashed blocks without their prefix
    in_stages = (
        is_chained
        and not keep_order
        and session_share == 1
        and not job.profile.needs_all_rows
        and not job.recipe.reader.delays
    )
    parts = _partitions(job, tasks, checkpoint, in_stages)
    store = Store.at(tasks.work, resume=checkpoint is not None and checkpoint.earlier is not None)
    try:
        local = PartitionEncoder(job.encoder, store, in_stages)
        encode = RemoteEncoder.of(local, tasks.key_file) if runner.is_far and tasks.key_file else local
        encoded, folder = [], ENCODED
        for partition in _encoded(parts, encode, runner, store, checkpoint, row_counter):
            encoded.append(partition)
            if listeners.on_progress:
                read_bytes = sum(part.size for part in parts[: len(encoded)])
                listeners.on_progress(Progress(read_bytes, total, row_counter.counts.requests, row_counter.tokens))
        counts, is_sorted = row_counter.counts, not keep_order and row_counter.is_reversed
        job = checked(
            job, row_counter, listeners, is_sorted=is_sorted, sampled=session_share != 1 or job.profile.is_sample
        )
        spilled = sum(partition.bytes for partition in encoded)
        if in_stages and job.arrival_model is not None:
            encoded, folder = with_arrivals(encoded, job.arrival_model, store, runner)
        plan = _plan(job, store, folder, encoded, tasks, in_stages)
        if in_stages and plan.counts != "inferred":
            numbered = _in_stages(job, plan, runner, counts, _measured(encoded))
        else:
            blocks = sum(int(partition.blocks.sum()) for partition in encoded)
            in_one_process(counts.requests, blocks).require(tasks.memory)
            collector = Collector.of(job.recipe, None if in_stages else job.arrival_model)
            collect(store, folder, len(encoded), collector)
            numbered = _in_memory(collector, job, counts, keep_order=keep_order, session_share=session_share)
        numbered.bytes = {"encode": spilled} | numbered.bytes
        yield AnonymizedDataset(numbered, counts, row_counter.usage)
    except BaseException:
        if checkpoint is None or not checkpoint.holds_work:
            store.remove()
        raise
    store.remove()


def _check_sources(job: Job) -> None:
    if any(source.form is None for source in job.sources):
        raise UsageError("--runner requires files as inputs: stdin and pipes cannot be read twice.")


def _in_stages(job: Job, plan: TaskPlan, runner: Runner, counts: RowCounts, measured: Sequence[str]) -> Numbered:
    """Number and release the encoded rows in tasks; `measured` are the columns of MEASURED that the log has."""
    meta = with_prompts(job.meta, counts)
    numbered = number(plan, runner, meta, isolated=job.recipe.options.isolate_tenants)
    numbered.account.notes[:0] = measured_notes(measured, job.profile)
    released = [name for name in measured if name in plan.carried]
    numbered.meta = stated(numbered.meta, numbered.account, counts, released)
    return numbered


def _in_memory(collector: Collector, job: Job, counts: RowCounts, **options: Any) -> Numbered:
    """Number and release the encoded rows in this process."""
    rows = released_rows(collector, job.release, counts, **options)
    account = rows.released or Account(job.profile)
    settings: dict[str, Any] = {"block_size": rows.block_size, "tail": rows.tail, "meta": rows.meta}
    return Numbered.of_rows(rows.columns, figures=figures(rows.trace()), account=account, **settings)


# -- the stages --------------------------------------------------------------------------------------------------


def _partitions(job, tasks, checkpoint, by_time) -> list[Partition]:
    """The partitions of the log; a resumed run has those of the earlier run."""
    total = sources.total(job.sources)
    usual = tasks.task_blocks * LOG_BYTES_PER_TOKEN * job.recipe.block_size
    size = min(max(MIN_PARTITION_BYTES, usual), MAX_PARTITION_BYTES)
    count = tasks.partitions or max(tasks.runner.workers, -(-total // size))
    if checkpoint is not None:
        count = checkpoint.begin_tasks(job.encoder, job.sources, partitions=count, by_time=by_time)
    return partitions_of(job.sources, count)


def _encoded(
    parts: list[Partition],
    encode: Callable[[Partition], EncodedPartition],
    runner: Runner,
    store: Store,
    checkpoint: TaskCheckpoint | None,
    row_counter: RowCounter,
) -> Iterator[EncodedPartition]:
    """Encode the partitions, one task each; those in the checkpoint are done."""

    def counted(partition: EncodedPartition) -> EncodedPartition:
        for piece, batch in partition.batches:
            row_counter.add(batch, piece)
        return replace(partition, batches=[])

    saved = checkpoint.saved(store) if checkpoint is not None else []
    yield from map(counted, saved)
    for partition in runner.map(encode, parts[len(saved) :]):
        summary = counted(partition)
        if checkpoint is not None:
            checkpoint.append_partition(partition)
        yield summary


def _plan(
    job: Job,
    store: Store,
    folder: str,
    encoded: list[EncodedPartition],
    options: TaskOptions,
    in_stages: bool,
) -> TaskPlan:
    """The plan of the later stages, from the sizes and times of the encoded partitions."""
    blocks = sum(int(partition.blocks.sum()) for partition in encoded)
    tasks = min(options.partitions or -(-blocks // options.task_blocks), blocks) or 1
    accounts, users = (
        any(getattr(partition, f"has_{name}") for partition in encoded) for name in ("accounts", "users")
    )
    sessions = any(partition.has_sessions for partition in encoded)
    measured = any(partition.has_service for partition in encoded)
    counts = split_by(job.profile, "accounts" if accounts else "client_users" if users else None, sessions)
    return TaskPlan(
        store=store, rows=folder, parts=len(encoded), shards=tasks, block_size=job.recipe.block_size,
        tail=job.profile.tail, profile=job.profile, counts=counts,
        cuts=cuts([partition.times for partition in encoded], [partition.blocks for partition in encoded], tasks),
        first_time=min(partition.first_time for partition in encoded if partition.first_time is not None),
        has_sessions=sessions, has_types=any(partition.has_types for partition in encoded),
        has_outputs=job.recipe.options.outputs, has_service=measured, service_model=job.service_model,
        session_times=sessions and not job.profile.drop_sessions and (measured or job.service_model is not None),
        carried=(
            *(["domain"] if in_stages and number_domains(encoded, store, folder) else []),
            *(name for name in _measured(encoded) if name in kept_measured(job.profile)),
        ),
    )  # fmt: skip


def _measured(encoded: list[EncodedPartition]) -> list[str]:
    """The columns of MEASURED that some partition has a value of."""
    return [name for name in MEASURED if any(name in partition.measured for partition in encoded)]
