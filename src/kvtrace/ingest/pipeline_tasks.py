"""Raw logs become a trace by many tasks, on this machine or on a cluster; the bytes are those of `anonymize_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .._base.errors import RowError, UsageError
from .._base.row_counts import Counts
from ..privacy.numbering.run import Numbered, Runner, number
from ..privacy.numbering.store import Store
from ..privacy.numbering.task_plan import BLOCKS, Plan, counts_of, cuts
from ..privacy.profiles import TAILS, Profile
from .encoding_tasks import Encoded, FarEncoder, PartEncoder, parts_of
from .keys import Key
from .logs import sources
from .pipeline import Inputs, Prepared, nothing_read, prepared
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
    inputs: Inputs,
    *,
    runner: Runner,
    work: str | Path,
    partitions: int | None = None,
    task_blocks: int = BLOCKS,
    key_file: str | None = None,
    log_format: str = "auto",
    field_map: dict[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    tokenizer: str | None = "deepseek-r1",
    chat_template: str | Path | None = None,
    use_template: bool = True,
    generation_prompt: str | None = None,
    block_size: int | None = None,
    profile: Profile | str = "standard",
    k: int | None = None,
    k_counts: str | None = None,
    tail: str | None = None,
    time_step_ms: int | None = None,
    round_input: str | int | None = None,
    round_output: str | int | None = None,
    drop_sessions: bool | None = None,
    tenant_field: str | None = None,
    isolate_tenants: bool = False,
    key: Key | None = None,
    max_errors: int = 0,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[dict], None] | None = None,
    arrivals: str | None = None,
    outputs: bool = False,
    keep_order: bool = False,
    sample_sessions: float = 1.0,
) -> Iterator[Anonymized]:
    """Anonymise raw logs by tasks of a runner, in bounded memory; the trace is that of `anonymize`.

    Args:
        inputs: Paths, directories or globs of files that can be read more than once.
        runner: Runs the tasks: a `LocalRunner`, or the one that `on_ray` gives.
        work: A folder or URL for the files that tasks hand on; it is removed when the block ends.
        partitions: Parts of the log, and tasks of each stage; the default follows from the size of the log.
        task_blocks: Block references that a task holds, when `partitions` is None.
        key_file: A file with the key, on each host, for a runner whose tasks run on other hosts.
        log_format, ..., on_progress: As in `anonymize`.
        on_start: Receives what the sidecar will say of log, tokenizer and hash, before the work starts.
        arrivals, outputs, keep_order, sample_sessions: Not supported here; they need all rows in one place.

    Yields:
        The rows in a store, their figures, and the counts of the log's rows.

    Raises:
        UsageError: Options do not fit together, or need all rows in one place.
        InputError: A log cannot be read, or has more than `max_errors` bad rows.

    >>> import json, tempfile, kvtrace
    >>> rows = [{"timestamp": time, "prompt": "a b c d e f g h", "output_length": 1} for time in (0, 1)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    ...     options = {"runner": kvtrace.LocalRunner(1), "work": f"{folder}/work"}
    ...     with anonymize_dataset(f"{folder}/log.jsonl", block_size=4, profile="exact", **options) as done:
    ...         done.made.figures["distinct_blocks"]
    2
    """
    _require_partable(arrivals, outputs, keep_order, sample_sessions)
    job = prepared(
        inputs, log_format=log_format, field_map=field_map, time_unit=time_unit, allow_truncated=allow_truncated,
        tokenizer=tokenizer, chat_template=chat_template, use_template=use_template,
        generation_prompt=generation_prompt, block_size=block_size, profile=profile, k=k, k_counts=k_counts, tail=tail,
        time_step_ms=time_step_ms, round_input=round_input, round_output=round_output, drop_sessions=drop_sessions,
        tenant_field=tenant_field, isolate_tenants=isolate_tenants, key=key, stop_at_error=max_errors == 0,
    )  # fmt: skip
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


def _require_partable(arrivals: str | None, outputs: bool, keep_order: bool, sample_sessions: float) -> None:
    """UsageError for what a run of many tasks can't do."""
    for given, option in ((arrivals, "--arrivals"), (outputs, "--outputs"), (keep_order, "--keep-order")):
        if given:
            raise UsageError(f"{option} needs all rows in one place. Leave out --runner.")
    if sample_sessions != 1:
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
    counts = counts_of(job.profile, users, sessions, "--map user=PATH or session=PATH")
    return Plan(
        store=store, parts=len(encoded), shards=tasks, block_size=job.recipe.block_size,
        tail=TAILS[job.profile.tail], profile=job.profile, counts=counts,
        cuts=cuts([one.times for one in encoded], [one.blocks for one in encoded], tasks),
        first_time=min(one.first for one in encoded if one.first is not None),
        has_sessions=sessions, has_types=any(one.has_types for one in encoded),
    )  # fmt: skip
