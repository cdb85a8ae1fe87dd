"""The stages one after the other, from encoded parts to the rows of a trace, and what there is to say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..._native.ids import DigestIndex
from ...trace.columns import Columns
from ...trace.hits import Hits, added_up
from ..contributors import Contributors
from ..releases import Account, Step
from .finishing import finish, read_columns
from .gathering import gather
from .matching import match
from .ranking import rank
from .resolving import resolve
from .task_plan import Plan, sums_before


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
    figures: dict[str, Any]
    account: Account
    bytes: dict[str, int]  # written by each stage

    def columns(self) -> Iterator[Columns]:
        """The trace's columns, some rows at a time: ids are those of the whole trace, and so are rows of parents."""
        for number in range(self.plan.ranges):
            columns = read_columns(self.plan, number)
            if len(columns):
                yield columns

    def contributors(self) -> Contributors | None:
        """Who holds the blocks of each request, numbered; None where nobody was counted."""
        if self.account.contributors is None:
            return None
        index, found = DigestIndex(), []
        for number in range(self.plan.ranges):
            with self.plan.store.open(f"gathered/{number}") as held:
                found.append(index.add(held["row_holder"]).astype(np.int64))
        return Contributors(np.concatenate(found), self.account.contributors.kind)


def number(
    plan: Plan,
    runner: Runner,
    meta: dict[str, Any],
    *,
    isolated: bool = False,
    before: Sequence[Step] = (),
    raw: str = "as it was",
    retailed: bool = True,
) -> Numbered:
    """The rows of a trace, numbered and released, from encoded parts; `meta` is what is known of its making.

    `before` are steps that led to these parts, which are called `raw`; `retailed`: their tails are not the plan's.
    """

    def run(stage, count):
        return list(runner.map(partial(stage, plan), range(count)))

    gathered = run(gather, plan.ranges)
    plan = plan.knowing(rows_before=sums_before([one["rows"] for one in gathered]))
    matched = run(match, plan.shards)
    ranked = run(rank, plan.ranges)
    blocks, sessions = ([one[name] for one in ranked] for name in ("blocks", "sessions"))
    plan = plan.knowing(blocks_before=sums_before(blocks), sessions_before=sums_before(sessions))
    resolved = run(resolve, plan.shards)
    finished = run(finish, plan.ranges)
    account = Account(plan.profile, isolated=isolated)
    _count(account, plan, before, raw, retailed)
    figures = _figures(plan, finished, sum(blocks), meta)
    stages = {"gather": gathered, "match": matched, "rank": ranked, "resolve": resolved, "finish": finished}
    written = {name: sum(one["bytes"] for one in results) for name, results in stages.items()}
    return Numbered(plan, meta | account.meta, figures, account, written)


# -- what is said of it ------------------------------------------------------------------------------------------


def _count(done: Account, plan: Plan, before: Sequence[Step], raw: str, retailed: bool) -> None:
    """Who was counted, and the hits after each step."""
    steps = {"as it was": raw}  # as the stages call it -> as it is told
    if plan.tail == "unique" and retailed:
        steps["tails unique"] = "tails unique"
    if plan.counts != "none":
        steps["k-sharing"] = "k-sharing"
        done.contributors = Contributors(np.empty(0, np.int64), plan.counts)
        if done.contributors.warning:
            done.notes.append(f"{done.contributors.warning}.")
    done.steps = [*before, *(Step(told, _hits(plan, name)) for name, told in steps.items())]


def _hits(plan: Plan, step: str, lengths: str = "gathered") -> Hits:
    """What prompts hit without eviction after a step."""

    def parts():
        for number in range(plan.ranges):
            names = (f"{name}/{number}" for name in ("gathered", "ranked", lengths))
            with ExitStack() as files:
                rows, hits, held = (files.enter_context(plan.store.open(name)) for name in names)
                yield hits[f"hits {step}"].astype(np.int64), rows["blocks"], held["input_length"]

    return added_up(parts(), plan.block_size)


def _figures(plan: Plan, finished: list[dict[str, Any]], distinct: int, meta: dict[str, Any]) -> dict[str, Any]:
    """What figures.figures says of the whole trace."""
    sums = {name: sum(one[name] for one in finished) for name in ("requests", "tokens", "output_tokens", "blocks")}
    most = {name: max(one[name] for one in finished) for name in ("sessions", "duration_ms")}
    figures: dict[str, Any] = {**sums, "distinct_blocks": distinct, **most}
    if "prefixes" not in meta:
        step = "k-sharing" if plan.counts != "none" else "tails unique" if plan.tail == "unique" else "as it was"
        figures["hits"] = _hits(plan, step, "finished").to_dict()
    return figures
