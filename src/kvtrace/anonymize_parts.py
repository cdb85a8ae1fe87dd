"""Raw logs become a trace by many tasks, on this machine or on a cluster; the bytes are those of `anonymize_rows`.

The stages are told in stages/__init__.py; here they are run one after the other, and what they count is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ._kernels.ids import DigestIndex
from .anonymize import Prepared, nothing_read, prepared
from .encode_parts import Encoded, FarEncoder, PartEncoder, parts_of
from .errors import RowError, UsageError
from .hits import Hits, added_up
from .logs import sources
from .privacy.holders import Holders
from .privacy.release import Account, Step
from .stages.finish import finish, read_columns
from .stages.gather import gather
from .stages.match import match
from .stages.plan import Plan, before
from .stages.rank import rank
from .stages.resolve import resolve
from .stages.store import Store
from .tally import Counts, Progress, Tally
from .trace import Columns

PART_BYTES = 64 << 20  # of log, that a task encodes
TASK_BLOCKS = 1 << 20  # block references that a task holds


class Runner(Protocol):
    """Runs the tasks of a stage; stages.local and stages.on_ray have one each."""

    workers: int
    is_far: bool  # its workers share no memory with this process: they read the key from its file

    def map(self, function: Callable, items: Sequence) -> Iterator:
        """function(item) for each, in order; a task that died is done again."""
        ...


@dataclass
class Numbered:
    """A trace whose rows lie in a store, range after range, and all that its sidecar says."""

    plan: Plan
    meta: dict[str, Any]
    counts: Counts
    figures: dict[str, Any]
    account: Account
    bytes: dict[str, int] = field(default_factory=dict)  # written by each stage

    def columns(self) -> Iterator[Columns]:
        """The trace's columns, some rows at a time: ids are those of the whole trace, and so are rows of parents."""
        for number in range(self.plan.ranges):
            columns = read_columns(self.plan, number)
            if len(columns):
                yield columns

    def holders(self) -> Holders | None:
        """Who holds the blocks of each request, numbered; None where nobody was counted."""
        if self.account.holders is None:
            return None
        index, found = DigestIndex(), []
        for number in range(self.plan.ranges):
            with self.plan.store.open(f"gathered/{number}") as held:
                found.append(index.add(held["row_holder"]).astype(np.int64))
        return Holders(np.concatenate(found), self.account.holders.kind)


@contextmanager
def anonymize_parts(
    inputs: str | Path | Iterable,
    *,
    runner: Runner,
    work: str | Path,
    partitions: int | None = None,
    key_file: str | None = None,
    max_errors: int = 0,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[dict], None] | None = None,
    **options,
) -> Iterator[Numbered]:
    """Anonymise raw logs by tasks of a runner; what they hand on lies in the folder or URL `work` until the block ends.

    Whatever `partitions` and the runner are, the trace is the same. The options are those of `anonymize.prepared`, less
    those that need all rows in one place: UsageError names them.
    """
    _require_partable(options)
    job = prepared(inputs, stop_at_error=max_errors == 0, **options)
    _require_files(job)
    if runner.is_far and key_file is None:
        raise UsageError("tasks on other hosts need --key-file: each host reads the key from its own copy.")
    if on_start:
        on_start(job.meta)
    store = Store(str(work))
    tally = Tally(max_errors, on_reject)
    try:
        encoded = _encoded(job, runner, store, partitions, key_file, tally, on_progress)
        if not tally.counts.requests:
            raise nothing_read(job.files, tally.counts)
        yield _numbered(job, runner, _plan(job, store, encoded, partitions), tally, encoded)
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


def _encoded(job, runner, store, partitions, key_file, tally, on_progress) -> list[Encoded]:
    total = sources.total(job.files)
    count = partitions or max(runner.workers, -(-total // PART_BYTES))
    parts = parts_of(job.files, count)
    encode = FarEncoder.of(job.encoder, key_file, store) if runner.is_far else PartEncoder(job.encoder, store)
    found, done = [], 0
    for one in runner.map(encode, parts):
        for piece, batch in one.told:
            tally.add(batch, piece)
            done += piece.size
        one.told.clear()
        found.append(one)
        if on_progress:
            on_progress(Progress(min(done, total), total, tally.counts.requests, tally.tokens))
    return found


def _plan(job: Prepared, store: Store, encoded: list[Encoded], partitions: int | None) -> Plan:
    """How the work goes on, now that it is known what there is."""
    blocks = sum(int(one.blocks.sum()) for one in encoded)
    tasks = partitions or max(1, -(-blocks // TASK_BLOCKS))
    users, sessions = (any(getattr(one, f"has_{name}") for one in encoded) for name in ("users", "sessions"))
    return Plan(
        store=store, parts=len(encoded), shards=tasks, block_size=job.recipe.block_size,
        tail={"drop": "dropped", "unique": "unique", "shared": "kept"}[job.profile.tail], profile=job.profile,
        counts=_counted(job.profile, users, sessions), cuts=_cuts(encoded, tasks),
        first_time=min(one.first for one in encoded if one.first is not None),
        has_sessions=sessions, has_types=any(one.has_types for one in encoded),
    )  # fmt: skip


def _counted(profile, users: bool, sessions: bool) -> str:
    """Who holds blocks, as privacy.holders chooses; UsageError where they would have to be inferred."""
    if profile.k == 1:
        return "none"
    if profile.k_counts == "requests":
        return "requests"
    if users and profile.k_counts in ("auto", "users"):
        return "users"
    if sessions:
        return "sessions"
    raise UsageError(
        "the log names neither users nor sessions, and to infer conversations takes all blocks in one place. Try --map "
        "user=PATH or session=PATH, --k-counts requests, --k 1, or leave out --runner."
    )


def _cuts(encoded: list[Encoded], count: int) -> list[int]:
    """Times at which ranges of about as many blocks each end; rows of one time are never parted."""
    times = np.concatenate([one.times for one in encoded])
    order = np.argsort(times, kind="stable")
    times, blocks = times[order], np.concatenate([one.blocks for one in encoded])[order]
    reached = np.cumsum(blocks) - blocks
    at = np.searchsorted(reached, reached[-1:] * np.arange(1, count) / count)
    return np.unique(times[at[at > 0]]).tolist()


def _numbered(job: Prepared, runner: Runner, plan: Plan, tally: Tally, encoded: list[Encoded]) -> Numbered:
    def run(stage, count):
        return list(runner.map(partial(stage, plan), range(count)))

    gathered = run(gather, plan.ranges)
    plan = plan.knowing(rows_before=before([one["rows"] for one in gathered]))
    matched = run(match, plan.shards)
    ranked = run(rank, plan.ranges)
    blocks, sessions = ([one[name] for one in ranked] for name in ("blocks", "sessions"))
    plan = plan.knowing(blocks_before=before(blocks), sessions_before=before(sessions))
    resolved = run(resolve, plan.shards)
    finished = run(finish, plan.ranges)
    account = _account(job, plan)
    meta = job.meta
    if tally.counts.lengths_only:
        meta = meta | {"prefixes": "unknown: the log holds lengths only, so no block is shared"}
        account.steps, account.notes = [], []  # nothing is shared, so there is nothing to lose or to warn of
    found = Numbered(plan, meta, tally.counts, {}, account)
    found.figures = _figures(found, sum(blocks), sum(sessions))
    found.meta = meta | account.meta | {"counts": tally.counts.to_dict()}
    stages = {"encode": [{"bytes": one.bytes} for one in encoded], "gather": gathered, "match": matched,
              "rank": ranked, "resolve": resolved, "finish": finished}  # fmt: skip
    found.bytes = {name: sum(one["bytes"] for one in results) for name, results in stages.items()}
    return found


# -- what is said of it ------------------------------------------------------------------------------------------


def _account(job: Prepared, plan: Plan) -> Account:
    done = Account(job.profile, isolated=job.recipe.isolate_tenants)
    names = ["as it was", *(["tails unique"] if plan.tail == "unique" else [])]
    if plan.counts != "none":
        names.append("k-sharing")
        done.holders = Holders(np.empty(0, np.int64), plan.counts)
        if done.holders.warning:
            done.notes.append(f"{done.holders.warning}.")
    done.steps = [Step(name, _hits(plan, name)) for name in names]
    return done


def _hits(plan: Plan, step: str, lengths: str = "gathered") -> Hits:
    """What prompts hit without eviction after a step."""

    def parts():
        for number in range(plan.ranges):
            with plan.store.open(f"gathered/{number}") as rows, plan.store.open(f"ranked/{number}") as hits:
                with plan.store.open(f"{lengths}/{number}") as held:
                    yield hits[f"hits {step}"].astype(np.int64), rows["blocks"], held["input_length"]

    return added_up(parts(), plan.block_size)


def _figures(found: Numbered, distinct: int, sessions: int) -> dict[str, Any]:
    """What figures.figures says of the whole trace."""
    requests = tokens = output_tokens = blocks = 0
    last = 0.0
    for columns in found.columns():
        requests += len(columns)
        tokens += int(columns.input_length.sum())
        output_tokens += int(columns.output_length.sum())
        blocks += len(columns.hash_ids)
        last = float(columns.timestamp[-1])
    plan = found.plan
    figures: dict[str, Any] = {
        "requests": requests, "tokens": tokens, "output_tokens": output_tokens, "blocks": blocks,
        "distinct_blocks": distinct, "sessions": 0 if plan.profile.drop_sessions else sessions, "duration_ms": last,
    }  # fmt: skip
    if "prefixes" not in found.meta:
        step = "k-sharing" if plan.counts != "none" else "tails unique" if plan.tail == "unique" else "as it was"
        figures["hits"] = _hits(plan, step, "finished").to_dict()
    return figures
