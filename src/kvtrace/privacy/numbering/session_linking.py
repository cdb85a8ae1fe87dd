"""Link: find what the requests of sessions waited for, for a share of the sessions in each task."""

from __future__ import annotations

import numpy as np

from ..._base.offsets import offsets_of
from ..._native import numbering
from ...trace.columns import Columns, replace_columns
from ...trace.dependencies import Dependencies, dependencies_between
from ...trace.recorded_dependencies import recorded_dependencies
from ..release_steps import ReleaseStep
from ..session_times import measured_ms, service_times
from ..timing import step_times
from .task_plan import Plan

ROWS = ("timestamp", "service_ms", "session", "row", "blocks")


def write_session_rows(plan: Plan, number: int, columns: Columns, time_ns: np.ndarray, service_ns: np.ndarray) -> int:
    """Set the service times of a range's rows, and write `sessions/<number>`: the rows with a session, by shard.

    Returns the number of rows whose service time the log did not measure.
    """
    assert columns.session is not None and plan.first_time is not None
    measured = measured_ms(time_ns, service_ns, plan.first_time)
    with plan.store.open(f"ranked/{number}") as ranked:
        hits = ranked[f"hits {_last_step(plan).value}"]
    columns.service_ms = service_times(
        columns, measured, hits, plan.profile, plan.service_model, block_size=plan.block_size, tail=plan.tail
    )
    inside = np.flatnonzero(columns.session >= 0)
    shard = columns.session[inside] % plan.shards
    rows = inside[np.argsort(shard, kind="stable")]
    ids, offsets = numbering.take(columns.hash_ids, columns.offsets, rows)
    starts = np.searchsorted(np.sort(shard), np.arange(plan.shards + 1))
    plan.store.write(
        f"sessions/{number}", timestamp=columns.timestamp[rows], service_ms=columns.service_ms[rows],
        session=columns.session[rows], row=rows + plan.rows_before[number], blocks=np.diff(offsets), ids=ids,
        shards=starts, shard_blocks=offsets[starts],
    )  # fmt: skip
    return int(np.isnan(measured).sum())


def link(plan: Plan, shard: int) -> dict[str, int]:
    """Write `linked/<shard>`: the dependencies of the requests of a share of the sessions, with coarse delays."""
    rows: dict[str, list[np.ndarray]] = {name: [] for name in (*ROWS, "ids")}
    for number in range(plan.ranges):
        with plan.store.open(f"sessions/{number}") as stored:
            start, stop = stored["shards", shard : shard + 2].tolist()
            first, last = stored["shard_blocks", shard : shard + 2].tolist()
            for name in ROWS:
                rows[name].append(stored[name, start:stop])
            rows["ids"].append(stored["ids", first:last])
    time, service, session, row, blocks, ids = (np.concatenate(values) for values in rows.values())
    nothing = np.zeros(len(row), dtype=np.int64)
    columns = Columns(time, nothing, nothing, ids, offsets_of(blocks), session=session, service_ms=service)
    waits = recorded_dependencies(columns)
    coarse = step_times(replace_columns(columns, dependencies=waits), plan.profile.time_step_ms).dependencies
    assert coarse is not None
    request = row[coarse.request]  # ascending, as the rows are
    written = plan.store.write(
        f"linked/{shard}", request=request, row=row[coarse.row], trigger=coarse.trigger, relation=coarse.relation,
        delay_ms=coarse.delay_ms, bounds=np.searchsorted(request, [*plan.rows_before, np.iinfo(np.int64).max]),
    )  # fmt: skip
    return {"dependencies": len(request), "bytes": written}


def linked_dependencies(plan: Plan, number: int, rows: int) -> Dependencies:
    """The dependencies of a range's rows, on rows of the whole."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("request", "row", "trigger", "relation", "delay_ms")}
    for shard in range(plan.shards):
        with plan.store.open(f"linked/{shard}") as stored:
            start, stop = stored["bounds", number : number + 2].tolist()
            for name, values in parts.items():
                values.append(stored[name, start:stop])
    request, row, trigger, relation, delay_ms = (np.concatenate(values) for values in parts.values())
    return dependencies_between(request - plan.rows_before[number], row, trigger, relation, delay_ms, rows)


def _last_step(plan: Plan) -> ReleaseStep:
    """The last step that changed the hits."""
    if plan.counts != "none":
        return ReleaseStep.K_SHARING
    return ReleaseStep.TAILS_UNIQUE if plan.tail == "unique" else ReleaseStep.ORIGINAL
