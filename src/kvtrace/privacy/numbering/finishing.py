"""The last stages: find what the requests of sessions waited for, and write the rows, coarsened by the profile.

A task of `link` has a share of the sessions, a task of `finish` one range's rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base.arrays import offsets_of
from ..._base.units import NS_PER_MS
from ..._native import numbering
from ...trace.columns import MEASURED, NUMBERS, Columns, replace_columns
from ...trace.dependencies import Dependencies, dependencies_between
from ...trace.session_trees import previous_turn, recorded_dependencies, turn_numbers
from ...trace.trace_figures import count_outputs
from ..account import ReleaseStep
from ..session_times import measured_ms, service_times
from ..steps import coarsened, step_times
from .stages import entries_of
from .task_plan import TaskPlan

ROWS = ("timestamp", "service_ms", "session", "row", "blocks")


def write_session_rows(
    plan: TaskPlan, number: int, columns: Columns, time_ns: np.ndarray, service_ns: np.ndarray
) -> int:
    """Set the service times of a range's rows, and write `sessions/<number>`: the rows with a session, by shard.

    Returns the number of rows whose service time the log did not measure.
    """
    assert columns.session is not None and plan.first_time is not None
    measured = measured_ms(time_ns, service_ns, plan.first_time)
    with plan.store.open(f"ranked/{number}") as ranked:
        hits = ranked[f"hits {last_step(plan).value}"]
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


def link(plan: TaskPlan, shard: int) -> dict[str, int]:
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


def linked_dependencies(plan: TaskPlan, number: int, rows: int) -> Dependencies:
    """The dependencies of a range's rows, on rows of the whole."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("request", "row", "trigger", "relation", "delay_ms")}
    for shard in range(plan.shards):
        with plan.store.open(f"linked/{shard}") as stored:
            start, stop = stored["bounds", number : number + 2].tolist()
            for name, values in parts.items():
                values.append(stored[name, start:stop])
    request, row, trigger, relation, delay_ms = (np.concatenate(values) for values in parts.values())
    return dependencies_between(request - plan.rows_before[number], row, trigger, relation, delay_ms, rows)


def last_step(plan: TaskPlan) -> ReleaseStep:
    """The last step that changed the hits."""
    if plan.counts != "none":
        return ReleaseStep.K_SHARING
    return ReleaseStep.TAILS_UNIQUE if plan.tail == "unique" else ReleaseStep.ORIGINAL


COLUMNS = ("timestamp", "input_length", "output_length", "hash_ids", "offsets")
OPTIONAL = ("session", "parent", "output_ids", "output_offsets", "domain", *NUMBERS)


def finish(plan: TaskPlan, number: int) -> dict[str, Any]:
    """Write `finished/<number>`, the columns of its rows; returns their sums, and the last time and session."""
    with plan.store.open(f"gathered/{number}") as gathered:
        rows = {name: gathered[name] for name in ("time", "input_length", "output_length")}
        by_shard, shards, blocks = gathered["by_shard"], gathered["shards"], entries_of(plan, gathered)
        kinds = (gathered["type"], gathered.about["types"]) if plan.has_types and len(rows["time"]) else None
        carried = {name: gathered[f"carried {name}"] for name in plan.carried}
        measured = gathered["service"] if plan.has_service else np.full(len(rows["time"]), -1)
        links = {}
        if plan.has_sessions:
            links = {name: gathered[name] for name in ("session", "sessions_by_shard", "session_shards")}
    ids = np.empty(len(by_shard), dtype=np.int64)  # entry -> id
    sessions: dict[str, np.ndarray] = {}
    for shard in range(plan.shards):
        with plan.store.open(f"resolved/{shard}") as resolved:
            start, stop = resolved["bounds", number : number + 2].tolist()
            ids[by_shard[shards[shard] : shards[shard + 1]]] = resolved["id", start:stop]
            if links:
                start, stop = resolved["session_bounds", number : number + 2].tolist()
                place = links["sessions_by_shard"][links["session_shards"][shard] : links["session_shards"][shard + 1]]
                for name in ("session", "session_previous", "session_turns"):
                    values = sessions.setdefault(name, np.empty(len(links["sessions_by_shard"]), dtype=np.int64))
                    values[place] = resolved[name, start:stop]
    segments: dict[str, Any] = dict(blocks.segments())
    segments |= {name: ids[segments[name]] for name in ("hash_ids", "output_ids") if name in segments}
    columns = Columns(
        timestamp=_timestamp(plan, rows["time"]),
        input_length=rows["input_length"], output_length=rows["output_length"], **segments,
    )  # fmt: skip
    if kinds is not None:
        words = np.array([kind or "text" for kind in kinds[1]], dtype=object)
        columns.extra["type"] = words[kinds[0]]
    if links:
        _link(columns, plan, number, links["session"], sessions)
    columns.session, columns.parent = (carried.get(name, getattr(columns, name)) for name in ("session", "parent"))
    for name in ("domain", *MEASURED):
        setattr(columns, name, carried.get(name))
    if "turn" in carried:
        columns.extra["turn"] = carried["turn"]
    unknown = write_session_rows(plan, number, columns, rows["time"], measured) if plan.session_times else 0
    columns, _ = coarsened(columns, plan.profile, plan.block_size, plan.tail)
    return {
        "requests": len(columns), "tokens": int(columns.input_length.sum()),
        "outputs": count_outputs(columns), "blocks": len(columns.hash_ids),
        "sessions": 0 if columns.session is None else int(columns.session.max(initial=-1)) + 1,
        "duration_ms": float(columns.timestamp.max(initial=0.0)), "unmeasured": unknown,
        "bytes": write_columns(plan, number, columns),
    }  # fmt: skip


def _timestamp(plan: TaskPlan, time) -> np.ndarray:
    """Milliseconds since the first request."""
    if plan.first_time is None:
        return time
    return ((time - plan.first_time) // NS_PER_MS).astype(np.float64)


def _link(columns: Columns, plan: TaskPlan, number: int, local, sessions) -> None:
    """Set each row's session, the row of its previous turn, and its turn, from 1."""
    linked = np.flatnonzero(local >= 0)
    session = local[linked]
    columns.session = np.full(len(columns), -1)
    columns.session[linked] = sessions["session"][session]
    before, turn = previous_turn(local), turn_numbers(local)
    columns.parent = np.where(before < 0, -1, before + plan.rows_before[number])
    begins = linked[before[linked] < 0]  # the turn before these is in an earlier range, if there is one
    columns.parent[begins] = sessions["session_previous"][local[begins]]
    turn[linked] += sessions["session_turns"][session]
    columns.extra["turn"] = turn


# -- columns in a file -------------------------------------------------------------------------------------------


def write_columns(plan: TaskPlan, number: int, columns: Columns) -> int:
    """Write `finished/<number>`; returns its size in bytes."""
    arrays = {name: getattr(columns, name) for name in COLUMNS}
    arrays |= {name: values for name in OPTIONAL if (values := getattr(columns, name)) is not None}
    words: dict[str, list[str]] = {}
    for name, values in columns.extra.items():
        if values.dtype == object:
            words[name], values = (list(part) for part in np.unique(values.astype(str), return_inverse=True))
        arrays[f"extra {name}"] = np.asarray(values)
    return plan.store.write(f"finished/{number}", {"words": words}, **arrays)


def read_columns(plan: TaskPlan, number: int) -> Columns:
    """Read the columns that write_columns wrote."""
    with plan.store.open(f"finished/{number}") as arrays:
        time, inputs, outputs, ids, offsets = (arrays[name] for name in COLUMNS)
        columns = Columns(time, inputs, outputs, ids, offsets)
        columns = replace_columns(columns, **{name: arrays[name] for name in OPTIONAL if name in arrays})
        for name in ("type", "turn"):
            if f"extra {name}" in arrays:
                values, words = arrays[f"extra {name}"], arrays.about["words"].get(name)
                columns.extra[name] = values if words is None else np.array(words, dtype=object)[values]
    return columns
