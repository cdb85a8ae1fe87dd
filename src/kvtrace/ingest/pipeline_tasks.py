"""Raw logs become a trace by many tasks, on this machine or on a cluster; the bytes are those of `anonymize_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .._base.errors import RowError, UsageError
from .._base.row_counts import Counts
from ..privacy.numbering.run import Numbered, Runner, number
from ..privacy.numbering.store import Store
from ..privacy.numbering.task_plan import BLOCKS, Plan, counted_kind, cuts
from .encoding_tasks import Encoded, FarEncoder, PartEncoder, parts_of
from .logs import sources
from .pipeline import Prepared, nothing_read, prepared
from .row_counts import Progress, RowCounter

TOKEN_BYTES = 4  # of log, that a token takes, or more
LEAST, MOST = 4 << 20, 256 << 20  # bytes of log that a task encodes


@dataclass
class Anonymized:
    """A trace in a store, and what happened to the rows of its log."""

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
) -> Iterator[Anonymized]:
    """Anonymise raw logs by tasks of a runner; what they hand on lies in the folder or URL `work` until the block ends.

    Whatever `partitions`, `task_blocks` (references that a task holds) and the runner are, the trace is the same. The
    options are those of `anonymize.prepared`, less those that need all rows in one place: UsageError names them.
    """
    _require_partable(options)
    job = prepared(inputs, stop_at_error=max_errors == 0, **options)
    _require_files(job)
    if runner.is_far and key_file is None:
        raise UsageError("tasks on other hosts need --key-file: each host reads the key from its own copy.")
    if on_start:
        on_start(job.meta)
    store = Store.at(work)
    row_counter = RowCounter(max_errors, on_reject)
    try:
        encoded = _encoded(job, runner, store, partitions, task_blocks, key_file, row_counter, on_progress)
        if not row_counter.counts.requests:
            raise nothing_read(job.files, row_counter.counts)
        plan = _plan(job, store, encoded, partitions, task_blocks)
        spilled = {"encode": sum(one.bytes for one in encoded)}
        del encoded
        made = number(plan, runner, job.meta | row_counter.counts.unknown, isolated=job.recipe.isolate_tenants)
        if "prefixes" in made.meta:  # nothing is shared, so there is nothing to lose or to warn of
            made.account.steps, made.account.notes = [], []
        made.meta |= made.account.meta | {"counts": row_counter.counts.to_dict()}
        made.bytes = spilled | made.bytes
        yield Anonymized(made, row_counter.counts)
    finally:
        store.remove()


def _require_partable(options) -> None:
    """UsageError for what a run of many tasks can't do."""
    for name, option in (("arrivals", "--arrivals"), ("outputs", "--outputs"), ("keep_order", "--keep-order")):
        if options.pop(name, None):
            raise UsageError(f"{option} needs all rows in one place. Leave out --runner.")
    if options.pop("sample_sessions", 1.0) != 1:
        raise UsageError("a sample is drawn from all sessions. Release the result with `kvtrace release` to draw it.")


def _require_files(job: Prepared) -> None:
    if any(source.form is None for source in job.files):
        raise UsageError("a run of many tasks needs inputs that are files: stdin and pipes can be read but once.")
    if job.recipe.reader.block_size is not None:
        raise UsageError("the log holds an engine's hashes, which may not be chained. Leave out --runner.")


# -- the stages --------------------------------------------------------------------------------------------------


def _encoded(job, runner, store, partitions, task_blocks, key_file, row_counter, on_progress) -> list[Encoded]:
    total = sources.total(job.files)
    size = min(max(LEAST, task_blocks * TOKEN_BYTES * job.recipe.block_size), MOST)
    count = partitions or max(runner.workers, -(-total // size))
    parts = parts_of(job.files, count)
    encode = FarEncoder.of(job.encoder, key_file, store) if runner.is_far else PartEncoder(job.encoder, store)
    found, done = [], 0
    for one in runner.map(encode, parts):
        for piece, batch in one.told:
            row_counter.add(batch, piece)
            done += piece.size
        one.told.clear()
        found.append(one)
        if on_progress:
            on_progress(Progress(min(done, total), total, row_counter.counts.requests, row_counter.tokens))
    return found


def _plan(job: Prepared, store: Store, encoded: list[Encoded], partitions: int | None, task_blocks: int) -> Plan:
    """How the work goes on, now that it is known what there is."""
    blocks = sum(int(one.blocks.sum()) for one in encoded)
    tasks = partitions or max(1, -(-blocks // task_blocks))
    users, sessions = (any(getattr(one, f"has_{name}") for one in encoded) for name in ("users", "sessions"))
    counts = counted_kind(job.profile, users, sessions, "--map user=PATH or session=PATH")
    return Plan(
        store=store, parts=len(encoded), shards=tasks, block_size=job.recipe.block_size,
        tail=job.profile.tail, profile=job.profile, counts=counts,
        cuts=cuts([one.times for one in encoded], [one.blocks for one in encoded], tasks),
        first_time=min(one.first for one in encoded if one.first is not None),
        has_sessions=sessions, has_types=any(one.has_types for one in encoded),
    )  # fmt: skip
