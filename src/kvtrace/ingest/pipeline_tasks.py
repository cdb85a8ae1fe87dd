"""Raw logs to a trace by tasks over files, on this machine or on a Ray cluster. The trace equals `anonymize_rows`'s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .._base.errors import RowError, UsageError
from .._base.row_counts import Counts
from ..privacy.numbering.run import Numbered, Runner, number
from ..privacy.numbering.store import Store
from ..privacy.numbering.task_plan import BLOCKS, Plan, counts_of, cuts
from .encoding_tasks import EncodedPartition, PartitionEncoder, RemoteEncoder, partitions_of
from .logs import sources
from .pipeline import no_requests_error
from .preparation import Job, prepare
from .row_counts import Progress, RowCounter

LOG_BYTES_PER_TOKEN = 4  # a lower estimate
MIN_PARTITION_BYTES, MAX_PARTITION_BYTES = 4 << 20, 256 << 20  # bytes of log that a task encodes


@dataclass
class AnonymizedDataset:
    """A trace in a store, and the counts of the log's rows."""

    made: Numbered
    counts: Counts


@contextmanager
def anonymize_dataset(
    inputs: str | Path | Iterable,
    *,
    runner: Runner,
    work: str | Path,
    partitions: int | None = None,
    task_blocks: int = BLOCKS,
    key_file: str | None = None,
    max_errors: int = 0,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[dict], None] | None = None,
    **options,
) -> Iterator[AnonymizedDataset]:
    """Anonymise raw logs by the tasks of a runner. Intermediate files lie in `work` until the `with` block ends.

    The trace does not depend on the runner, `partitions` or `task_blocks`. The other options are those of
    `preparation.prepare`.

    Args:
        work: a folder or a URL for intermediate files. It must be new or empty; it is removed at the end.
        partitions: partitions of the log, and tasks of each later stage. The default follows from the log's size.
        task_blocks: block references that a task holds.

    Raises:
        UsageError: an option needs all rows in one process.
    """
    _check_options(options)
    job = prepare(inputs, stop_at_error=max_errors == 0, **options)
    _check_sources(job)
    if runner.is_far and key_file is None:
        raise UsageError("tasks on other hosts require --key-file: each host reads the key from its own copy.")
    if on_start:
        on_start(job.meta)
    store = Store.at(work)
    row_counter = RowCounter(max_errors, on_reject)
    try:
        encoded = _encoded(job, runner, store, partitions, task_blocks, key_file, row_counter, on_progress)
        if not row_counter.counts.requests:
            raise no_requests_error(job.sources, row_counter.counts)
        plan = _plan(job, store, encoded, partitions, task_blocks)
        spilled = {"encode": sum(partition.bytes for partition in encoded)}
        del encoded
        made = number(plan, runner, job.meta | row_counter.counts.unknown, isolated=job.recipe.isolate_tenants)
        if "prefixes" in made.meta:  # the log holds lengths only: without shared blocks there are no costs to report
            made.account.steps, made.account.notes = [], []
        made.meta |= made.account.meta | {"counts": row_counter.counts.to_dict()}
        made.bytes = spilled | made.bytes
        yield AnonymizedDataset(made, row_counter.counts)
    finally:
        store.remove()


def _check_options(options) -> None:
    """Remove the options that need all rows in one process; UsageError if one of them is set."""
    for name, option in (("arrivals", "--arrivals"), ("outputs", "--outputs"), ("keep_order", "--keep-order")):
        if options.pop(name, None):
            raise UsageError(f"{option} does not work with --runner. Leave out one of them.")
    if options.pop("sample_sessions", 1.0) != 1:
        raise UsageError(
            "--sample-sessions does not work with --runner. Anonymise the whole log, then draw the sample with "
            "`kvtrace release --sample-sessions`."
        )


def _check_sources(job: Job) -> None:
    if any(source.form is None for source in job.sources):
        raise UsageError("--runner requires files as inputs: stdin and pipes cannot be read twice.")
    if job.recipe.reader.block_size is not None:
        raise UsageError("--runner does not work with logs of an engine's hashes, which may not be chained.")


# -- the stages --------------------------------------------------------------------------------------------------


def _encoded(job, runner, store, partitions, task_blocks, key_file, row_counter, on_progress) -> list[EncodedPartition]:
    """Encode the log, one task a partition."""
    total = sources.total(job.sources)
    size = min(max(MIN_PARTITION_BYTES, task_blocks * LOG_BYTES_PER_TOKEN * job.recipe.block_size), MAX_PARTITION_BYTES)
    count = partitions or max(runner.workers, -(-total // size))
    log_partitions = partitions_of(job.sources, count)
    encode = RemoteEncoder.of(job.encoder, key_file, store) if runner.is_far else PartitionEncoder(job.encoder, store)
    encoded, done = [], 0
    for partition in runner.map(encode, log_partitions):
        for piece, batch in partition.batches:
            row_counter.add(batch, piece)
            done += piece.size
        partition.batches.clear()
        encoded.append(partition)
        if on_progress:
            on_progress(Progress(min(done, total), total, row_counter.counts.requests, row_counter.tokens))
    return encoded


def _plan(job: Job, store: Store, encoded: list[EncodedPartition], partitions: int | None, task_blocks: int) -> Plan:
    """The plan of the later stages, from the sizes and times of the encoded partitions."""
    blocks = sum(int(partition.blocks.sum()) for partition in encoded)
    tasks = partitions or max(1, -(-blocks // task_blocks))
    users = any(partition.has_users for partition in encoded)
    sessions = any(partition.has_sessions for partition in encoded)
    counts = counts_of(job.profile, users, sessions, "--map user=PATH or session=PATH")
    return Plan(
        store=store, parts=len(encoded), shards=tasks, block_size=job.recipe.block_size,
        tail=job.profile.tail, profile=job.profile, counts=counts,
        cuts=cuts([partition.times for partition in encoded], [partition.blocks for partition in encoded], tasks),
        first_time=min(partition.first_time for partition in encoded if partition.first_time is not None),
        has_sessions=sessions, has_types=any(partition.has_types for partition in encoded),
    )  # fmt: skip
