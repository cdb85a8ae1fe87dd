"""Run the stages in order, from encoded parts to the rows of a trace, and collect its figures.

LocalRunner has one process for each worker; a task runs again if its worker died. RayRunner runs one task at a time on
a CPU of a Ray cluster; the tasks of a lost worker or node run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from ..._base.step_work import report_work
from ..._base.workers import cores, retrying_map
from ..._native.numbering import DigestIndex
from ...trace.columns import Columns
from ...trace.hits import Hits, sum_hits
from ...trace.meta import Meta, merge, shares_prefixes
from ...trace.trace_figures import output_figures
from ..account import Account, Numbered, ReleaseStep, StepHits
from ..contributors import Contributors
from ..session_times import WITHOUT_TIMES, SessionTimes
from .finishing import finish, last_step, link, linked_dependencies, read_columns
from .stages import gather, is_unnamed, match, rank, resolve
from .task_plan import BLOCKS, UNKNOWN, TaskPlan, sums_before


class Runner(Protocol):
    """Runs the tasks of a stage: a `LocalRunner`, or a `RayRunner`."""

    workers: int
    is_far: bool  # whether workers are on other machines: they read the key from its file

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        """function(item) for each item, in order; a task that died runs again."""
        ...


@dataclass(frozen=True)
class TaskOptions:
    """Where the tasks of a run work, and how much they hold."""

    runner: Runner  # a `LocalRunner`, or the runner of `on_ray`
    work: str | Path  # a new or empty folder, or a URL, for intermediate files; removed when the run ends
    partitions: int | None = None  # of the log, and tasks of each stage; None = by the size of the log
    task_blocks: int = BLOCKS  # block references that a task holds, where `partitions` is None
    memory: int | None = None  # bytes that the rows may take which one process must hold
    key_file: str | None = None  # a file with the key on each host, for tasks on other hosts


def number(
    plan: TaskPlan,
    runner: Runner,
    meta: dict[str, Any],
    *,
    isolated: bool = False,
    before: Sequence[StepHits] = (),
    first_step: ReleaseStep = ReleaseStep.ORIGINAL,
    changes_tails: bool = True,
    on_step: Callable[[str], None] | None = None,
) -> Numbered:
    """Number and release the rows of encoded parts.

    Args:
        plan: the constants of the run.
        runner: runs the tasks.
        meta: the sidecar's values so far.
        isolated: whether tenants were isolated.
        before: steps before the one that led to these parts.
        first_step: the step that led to these parts.
        changes_tails: whether the parts' tails differ from the plan's.
        on_step: receives the name of each stage before it.
    """

    def run(stage, count):
        if on_step:
            on_step(stage.__name__)
        results = []
        for result in runner.map(partial(stage, plan), range(count)):
            results.append(result)
            report_work(1, count)
        return results

    gathered = run(gather, plan.ranges)
    plan = plan.updated(rows_before=sums_before([result["rows"] for result in gathered]))
    matched = run(match, plan.shards)
    ranked = run(rank, plan.ranges)
    blocks, sessions = ([result[name] for result in ranked] for name in ("blocks", "sessions"))
    plan = plan.updated(blocks_before=sums_before(blocks), sessions_before=sums_before(sessions))
    resolved = run(resolve, plan.shards)
    finished = run(finish, plan.ranges)
    linked = run(link, plan.shards) if plan.session_times else []
    account = Account(plan.profile, isolated=isolated)
    _record_steps(account, plan, before, first_step, changes_tails)
    account.note_dropped_links(plan.has_sessions or not {"session", "turn"}.isdisjoint(plan.carried))
    account.note_contributors(*(sum(result[name] for result in gathered) for name in ("unknown", "rows")))
    meta = _with_session_times(plan, meta, account, finished, linked)
    figures = _figures(plan, finished, sum(blocks), meta)
    stages = {"gather": gathered, "match": matched, "rank": ranked, "resolve": resolved, "finish": finished}
    stages |= {"link": linked} if plan.session_times else {}
    written = {name: sum(result["bytes"] for result in results) for name, results in stages.items()}
    return Numbered(
        plan.block_size, plan.tail, merge(meta, account.meta), figures, account, partial(_columns, plan),
        partial(_contributors, plan), written,
    )  # fmt: skip


def _with_session_times(plan: TaskPlan, meta: dict[str, Any], account: Account, finished, linked) -> dict[str, Any]:
    """The sidecar's values with the source of the service times; notes go to the account."""
    if not plan.session_times:
        if plan.has_sessions and not plan.profile.drop_sessions:
            account.notes.append(WITHOUT_TIMES)
        return meta
    times = SessionTimes(plan.profile, plan.service_model)
    requests, unknown = (sum(result[name] for result in finished) for name in ("requests", "unmeasured"))
    times.state(unknown, requests, sum(result["dependencies"] for result in linked))
    account.notes += times.notes
    return merge(meta, cast(Meta, {"service_times": times.section}))


def _columns(plan: TaskPlan) -> Iterator[Columns]:
    """The rows that the last stage wrote."""
    for number in range(plan.ranges):
        columns = read_columns(plan, number)
        if plan.session_times:
            columns.dependencies = linked_dependencies(plan, number, len(columns))
        if len(columns):
            yield columns


def _contributors(plan: TaskPlan) -> Contributors | None:
    """The contributor of each request, numbered over all ranges."""
    if plan.counts == "none":
        return None
    index, members = DigestIndex(), DigestIndex()
    index.add(UNKNOWN[None])  # its number is 0
    numbers: list[np.ndarray] = []
    of_members: list[np.ndarray] = []
    unnamed: list[np.ndarray] = []
    for number in range(plan.ranges):
        with plan.store.open(f"gathered/{number}") as rows:
            who = rows["row_contributor"], rows["row_member"]
        numbers.append(index.add(who[0]).astype(np.int64))
        of_members.append(members.add(who[1]).astype(np.int64))
        unnamed.append(is_unnamed(plan, *who))
    contributor, member = np.concatenate(numbers), np.concatenate(of_members)
    return Contributors(contributor, plan.counts, member, unknown=0, unnamed=np.concatenate(unnamed))


# -- figures -----------------------------------------------------------------------------------------------------


def _record_steps(
    account: Account, plan: TaskPlan, before: Sequence[StepHits], first_step, changes_tails: bool
) -> None:
    """Record the counted contributors and the hits after each step."""
    steps = {ReleaseStep.ORIGINAL: first_step}  # step of the stages -> step of the release
    if plan.tail == "unique" and changes_tails:
        steps[ReleaseStep.TAILS_UNIQUE] = ReleaseStep.TAILS_UNIQUE
    if plan.counts != "none":
        steps[ReleaseStep.K_SHARING] = ReleaseStep.K_SHARING
        account.contributors = Contributors(np.empty(0, np.int64), plan.counts)
    account.steps = [*before, *(StepHits(step, _hits(plan, counted)) for counted, step in steps.items())]


def _hits(plan: TaskPlan, step: str, lengths: str = "gathered") -> Hits:
    """The hits of the prompts without eviction after a step, or at the end with the blocks of outputs."""

    def ranges():
        for number in range(plan.ranges):
            names = (f"{name}/{number}" for name in ("gathered", "ranked", lengths))
            with ExitStack() as files:
                rows, ranked, with_lengths = (files.enter_context(plan.store.open(name)) for name in names)
                prompts = rows["prompts"] if plan.has_outputs else rows["blocks"]
                yield ranked[f"hits {step}"].astype(np.int64), prompts, with_lengths["input_length"]

    return sum_hits(ranges(), plan.block_size)


def _figures(plan: TaskPlan, finished: list[dict[str, Any]], distinct: int, meta: dict[str, Any]) -> dict[str, Any]:
    """The figures of the whole trace, as `trace.figures` gives them."""
    sums = {name: sum(result[name] for result in finished) for name in ("requests", "tokens", "blocks")}
    outputs = (sum(counts) for counts in zip(*(result["outputs"] for result in finished), strict=True))
    maxima = {name: max(result[name] for result in finished) for name in ("sessions", "duration_ms")}
    figures: dict[str, Any] = {
        "requests": sums["requests"], "tokens": sums["tokens"], **output_figures(*outputs), "blocks": sums["blocks"],
        "distinct_blocks": distinct, **maxima,
    }  # fmt: skip
    if shares_prefixes(meta):
        figures["hits"] = _hits(plan, last_step(plan), "finished").to_dict()
        if plan.has_outputs:
            figures["hits_with_outputs"] = _hits(plan, "with outputs", "finished").to_dict()
    return figures


class LocalRunner:
    """Runs tasks in processes of this machine.

    >>> list(LocalRunner(workers=1).map(abs, [-2, 3]))
    [2, 3]
    """

    is_far: bool = False
    workers: int

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        """function(item) for each item, in order."""
        return retrying_map(function, items, self.workers)


RETRIES = 5


class RayRunner:
    """Runs tasks on the cluster that `on_ray` connected to."""

    is_far: bool = True
    workers: int

    def __init__(self, workers: int):
        self.workers = workers

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        """function(item) for each item, in order."""
        from ..._base.ray_cluster import ordered

        return ordered(function, items, in_flight=2 * self.workers, retries=RETRIES)


@contextmanager
def on_ray(address: str | None = None, workers: int | None = None) -> Iterator[RayRunner]:
    """A runner on the cluster at an address, or on a local cluster that stops when the block ends.

    `workers` is the maximum number of concurrent tasks; by default all CPUs of the cluster.
    """
    from ..._base.ray_cluster import connected

    with connected(address) as ray:
        yield RayRunner(workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
