"""Release a data set by tasks, as `ingest/pipeline_tasks.py` anonymises a log; the output equals that of `release`.

Blocks have ids here, not digests; a public hash of the id determines its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from .._base.arrays import offsets_of, split_mix
from .._base.options import record_of
from .._base.step_work import report_work
from ..formats.dataset import Dataset
from ..formats.lazy import LazyTrace
from ..trace.building import require_rule
from ..trace.columns import MEASURED, TAILS, Columns, measured_of
from ..trace.hits import Hits, sum_hits, unlimited_hits
from ..trace.meta import merge, shares_prefixes, without_stale
from .account import Numbered, ReleaseStep, StepHits
from .allowed_values import EXTRA
from .contributors import Users
from .numbering.run import Runner, TaskOptions, number
from .numbering.store import Store
from .numbering.task_plan import BLOCKS, ENCODED, TaskPlan, cuts, in_one_process, sample_times, split_by
from .profiles import kept_measured
from .release_options import Profile
from .releases import ReleaseScope, drawn, left_out, measured_notes, release_in_pieces
from .steps import are_turns

CARRIED = ("session", "parent", "turn", *MEASURED)


def release_dataset(
    dataset: Dataset,
    profile: Profile,
    *,
    runner: Runner,
    work: str | Path,
    partitions: int | None = None,
    task_blocks: int = BLOCKS,
    users: np.ndarray | None = None,
    session_share: float = 1.0,
    isolate: bool = False,
    rng: np.random.Generator | None = None,
    keep_domains: bool | None = None,
    memory: int | None = None,
    on_step: Callable[[str], None] | None = None,
) -> AbstractContextManager[Numbered]:
    """Coarsen a data set by a release profile, in tasks and bounded memory; the result is that of `release`.

    Args:
        dataset: The data set, from `open_dataset`.
        profile: A profile, from `profile(name)` or PROFILES.
        runner: Runs the tasks: a `LocalRunner`, or the one that `on_ray` gives.
        work: A folder or URL for the files that tasks hand on; it is removed when the block ends.
        partitions: Tasks of each stage; the default follows from `task_blocks`.
        task_blocks: Block references that a task holds.
        users, session_share, isolate, rng, keep_domains: As in `release`.
        memory: Limit in bytes for a release that needs all blocks in one process; see below.
        on_step: Receives the name of each step before it: "encode", then those of the stages.

    One process needs all blocks to chain ids, to isolate users, to split or keep domains, to infer conversations, and
    to release what requests wait for, service times, blocks of outputs, columns that are not kvtrace's own (profile
    "exact"), or a sample without tails. It then holds the data set as `release` does.

    Returns:
        A context manager with the released rows in pieces, their figures, and the values of the sidecar.

    Raises:
        UsageError: An option is not valid, or the release needs more than `memory`.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = kvtrace.write(kvtrace.toy("0 1", "0 2", block_size=16), f"{folder}/day.dataset")
    ...     opened, runner = kvtrace.formats.open_dataset(f"{folder}/day.dataset"), kvtrace.privacy.LocalRunner(1)
    ...     exact = kvtrace.privacy.profile("exact")
    ...     with release_dataset(opened, exact, runner=runner, work=f"{folder}/work") as released:
    ...         released.figures["distinct_blocks"]
    3
    """
    values = locals()
    return released_in_tasks(
        dataset, profile, record_of(ReleaseScope, values), record_of(TaskOptions, values), on_step=on_step
    )


@contextmanager
def released_in_tasks(
    dataset: Dataset,
    profile: Profile,
    scope: ReleaseScope,
    tasks: TaskOptions,
    *,
    on_step: Callable[[str], None] | None = None,
) -> Iterator[Numbered]:
    """As `release_dataset`."""
    whole = LazyTrace(dataset, extra=("turn",))
    require_rule(dataset.tail, "a release")
    tail = max(profile.tail, dataset.tail, key=TAILS.index)
    rng = scope.rng or np.random.default_rng()
    unused = replace(scope, rng=deepcopy(rng))
    rows = _sample(whole, replace(scope, rng=rng))
    if _needs_all_blocks(dataset, whole, profile, tail, scope, rows):
        in_one_process(len(dataset), dataset.blocks).require(tasks.memory)
        yield release_in_pieces(dataset.trace(), profile, unused)
        return
    drops = tail == "dropped" != dataset.tail
    first = ReleaseStep.TAILS_DROPPED if drops else ReleaseStep.ORIGINAL if rows is None else ReleaseStep.SAMPLED
    before = [] if first == ReleaseStep.ORIGINAL else [StepHits(ReleaseStep.ORIGINAL, _hits(dataset))]
    meta = without_stale(dataset.meta)
    measured = [name for name in measured_of(whole) if name in kept_measured(profile)]
    encode = _Encoder(dataset, Store.at(tasks.work), scope.users, rows, drops, measured)
    if on_step:
        on_step("encode")
    try:
        plan = _plan(dataset, profile, encode, tasks, tail, whole)
        released = number(
            plan, tasks.runner, meta, before=before, first_step=first, changes_tails=tail != dataset.tail,
            on_step=on_step,
        )  # fmt: skip
        released.account.sampled = rows is not None
        notes = measured_notes(measured_of(whole), profile)
        released.account.notes[:0] = notes + left_out(_dropped_columns(dataset, encode.names, profile))
        if not shares_prefixes(meta):
            released.account.drop_costs()
        released.meta = merge(released.meta, released.account.meta)
        released.bytes = {"encode": encode.bytes} | released.bytes
        yield released
    finally:
        encode.store.remove()


def _sample(whole: LazyTrace, scope: ReleaseScope) -> np.ndarray | None:
    """Whether each request is in the sample; None for all requests, or if drawing needs inferred conversations."""
    if scope.session_share == 1 or not (_any_known(scope.users) or _any_known(whole.session)):
        return None
    return drawn(cast(Columns, whole), scope, infer=partial(np.arange, len(whole)))  # there is nothing to infer


def _needs_all_blocks(
    dataset: Dataset, whole: LazyTrace, profile: Profile, tail: str, scope: ReleaseScope, rows: np.ndarray | None
) -> bool:
    """Whether the release needs the blocks of all rows in one process, because tasks cannot apply a step of it."""
    counts = split_by(profile, _kind_of(scope.users, rows), _any_known(whole.session, rows))
    return (
        scope.isolate
        or not whole.is_chained
        or profile.needs_all_rows
        or any(values is not None for values in (whole.domain, whole.dependencies, whole.service_ms))
        or bool(dataset.output_blocks)
        or counts == "inferred"
        or (rows is None) != (scope.session_share == 1)
        or (rows is not None and tail == "dropped" != dataset.tail)
    )


def _any_known(numbers: Users | np.ndarray | None, rows: np.ndarray | None = None) -> bool:
    """Whether any request (of some rows) has a number."""
    return isinstance(numbers, np.ndarray) and bool((numbers[slice(None) if rows is None else rows] >= 0).any())


def _kind_of(users: Users | np.ndarray | None, rows: np.ndarray | None) -> str | None:
    """The kind of the known users (of some rows), None if no user is known."""
    return "users" if _any_known(users, rows) else None


def _dropped_columns(dataset: Dataset, carried: Container[str], profile: Profile) -> list[str]:
    """The extra columns that a release leaves out; turns that go with the sessions have a note of their own."""
    kept = EXTRA if profile.drop_sessions else [name for name in EXTRA if name != "turn" or "turn" in carried]
    names = [name.removeprefix("extra.") for name in dataset.names() if name.startswith("extra.")]
    return [name for name in names if name not in kept]


def _hits(dataset: Dataset) -> Hits:
    """The hits of the original prompts without eviction."""

    def pieces():
        seen = 0
        for columns in dataset.chunks(BLOCKS, extra="ignore"):
            yield unlimited_hits(columns, seen=seen), np.diff(columns.offsets), columns.input_length
            seen = max(seen, int(columns.hash_ids.max(initial=-1)) + 1)

    return sum_hits(pieces(), dataset.block_size)


class _Encoder:
    """Writes the rows of a data set in the format of the first stage, part by part."""

    def __init__(
        self, dataset: Dataset, store: Store, users, rows: np.ndarray | None, drops: bool, measured: Sequence[str]
    ):
        self._measured = measured  # the measured columns that the release keeps
        self._dataset, self.store, self.users, self.rows, self._drops = dataset, store, users, rows, drops
        self.place = None if rows is None else np.cumsum(rows) - 1  # row -> row in the sample
        self.times: list[np.ndarray] = []
        self.blocks: list[np.ndarray] = []
        self.bytes, self.names = 0, set()  # type: ignore[var-annotated]
        self.has_turns = True  # no row has a turn that a release leaves out

    def run(self) -> int:
        """Write all parts; returns their number."""
        start = count = 0
        first_time: float | None = None
        session = _SessionNumbers()
        for columns in self._dataset.chunks(BLOCKS):
            rows = slice(start, start + len(columns))
            report_work(len(columns), len(self._dataset))
            start += len(columns)
            users = None if self.users is None else self.users[rows]
            if self.rows is not None:
                sample, parent = np.flatnonzero(self.rows[rows]), columns.parent
                columns, users = columns.take(sample), None if users is None else users[sample]
                if first_time is None and len(sample):
                    first_time = float(columns.timestamp[0])
                columns.timestamp = columns.timestamp - (first_time or 0.0)
                if columns.session is not None:
                    columns.session = session(columns.session)
                if parent is not None and self.place is not None:  # parents are rows of the whole data set
                    columns.parent = np.where(parent[sample] < 0, -1, self.place[parent[sample]])
            if len(columns):
                self._write(count, columns, users)
                count += 1
        if not self.has_turns:  # one row without a turn, and all rows of a release have none
            self.names.discard("turn")
        return count

    def _write(self, part: int, columns: Columns, users) -> None:
        ids, offsets = columns.hash_ids, columns.offsets
        if self._drops:
            ids, offsets = _without_tails(columns, self._dataset.block_size)
        linked = {"session": columns.session, "parent": columns.parent, "turn": columns.extra.get("turn")}
        if linked["turn"] is not None and not are_turns(linked["turn"]):
            linked["turn"], self.has_turns = None, False
        carried = {name: values for name, values in linked.items() if values is not None}
        for name in self._measured:  # a part without one has unknown numbers
            values = getattr(columns, name)
            carried[name] = MEASURED[name].unknowns(len(columns)) if values is None else values
        code_of_kind: dict[str, int] = {}
        kinds = columns.extra["type"].tolist() if "type" in columns.extra else []
        codes = np.array([code_of_kind.setdefault(str(kind), len(code_of_kind)) for kind in kinds], dtype=np.int32)
        self.names |= {*carried, *(["type"] if kinds else [])}
        contributors = {"session": columns.session, "user": users}
        self.bytes += self.store.write(
            f"{ENCODED}/{part}", {"types": list(code_of_kind)},
            time=columns.timestamp, input_length=columns.input_length, output_length=columns.output_length,
            offsets=offsets, digests=_digests(ids), **({"type": codes} if kinds else {}),
            **{name: _digests(numbers, kind) for kind, (name, numbers) in enumerate(contributors.items())
            if numbers is not None}, **{f"carried {name}": values for name, values in carried.items()},
        )  # fmt: skip
        times, blocks = sample_times(columns.timestamp, offsets)
        self.times.append(times)
        self.blocks.append(blocks)


def _plan(dataset, profile, encode, tasks: TaskOptions, tail, whole) -> TaskPlan:
    count = encode.run()
    shards = tasks.partitions or max(1, -(-sum(int(blocks.sum()) for blocks in encode.blocks) // tasks.task_blocks))
    users, sessions = _kind_of(encode.users, encode.rows), _any_known(whole.session, encode.rows)
    return TaskPlan(
        store=encode.store, parts=count, shards=shards, block_size=dataset.block_size, tail=tail, profile=profile,
        counts=split_by(profile, users, sessions), cuts=cuts(encode.times, encode.blocks, shards),
        first_time=None, has_types="type" in encode.names,
        carried=tuple(name for name in CARRIED if name in encode.names),
    )  # fmt: skip


class _SessionNumbers:
    """Renumbers the sessions of a sample; sessions are drawn whole, so their order stays."""

    def __init__(self):
        self._number: dict[int, int] = {}

    def __call__(self, sessions: np.ndarray) -> np.ndarray:
        number = self._number
        numbers = (number.setdefault(session, len(number)) if session >= 0 else -1 for session in sessions.tolist())
        return np.fromiter(numbers, dtype=np.int64, count=len(sessions))


def _digests(numbers, kind: int = 0) -> np.ndarray:
    """128 unique bits for each number of a kind, spread evenly over the shards; zeros for -1."""
    digests = np.stack([split_mix(numbers), numbers.astype(np.uint64) * np.uint64(2) + np.uint64(1 + kind)], axis=1)
    digests[numbers < 0] = 0
    return digests


def _without_tails(columns: Columns, block_size) -> tuple[np.ndarray, np.ndarray]:
    blocks = np.diff(columns.offsets)
    partial = (columns.input_length % block_size > 0) & (blocks > 0)
    is_full = np.ones(len(columns.hash_ids), dtype=bool)
    is_full[columns.offsets[1:][partial] - 1] = False
    return columns.hash_ids[is_full], offsets_of(blocks - partial)
