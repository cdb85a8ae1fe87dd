"""Finish: write one range's rows of the trace, coarsened by the profile."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base.units import NS_PER_MS
from ...trace.columns import Columns, replace_columns
from ...trace.measured import MEASURED, NUMBERS
from ...trace.trace_figures import count_outputs
from ...trace.turns import previous_turn, turn_numbers
from ..steps import coarsened
from .gathering import entries_of
from .session_linking import write_session_rows
from .task_plan import Plan

COLUMNS = ("timestamp", "input_length", "output_length", "hash_ids", "offsets")
OPTIONAL = ("session", "parent", "output_ids", "output_offsets", "domain", *NUMBERS)


def finish(plan: Plan, number: int) -> dict[str, Any]:
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


def _timestamp(plan: Plan, time) -> np.ndarray:
    """Milliseconds since the first request."""
    if plan.first_time is None:
        return time
    return ((time - plan.first_time) // NS_PER_MS).astype(np.float64)


def _link(columns: Columns, plan: Plan, number: int, local, sessions) -> None:
    """Set each row's session, the row of its previous turn, and its turn, from 1."""
    known = np.flatnonzero(local >= 0)
    session = local[known]
    columns.session = np.full(len(columns), -1)
    columns.session[known] = sessions["session"][session]
    before, turn = previous_turn(local), turn_numbers(local)
    columns.parent = np.where(before < 0, -1, before + plan.rows_before[number])
    begins = known[before[known] < 0]  # the turn before these is in an earlier range, if there is one
    columns.parent[begins] = sessions["session_previous"][local[begins]]
    turn[known] += sessions["session_turns"][session]
    columns.extra["turn"] = turn


# -- columns in a file -------------------------------------------------------------------------------------------


def write_columns(plan: Plan, number: int, columns: Columns) -> int:
    """Write `finished/<number>`; returns its size in bytes."""
    arrays = {name: getattr(columns, name) for name in COLUMNS}
    arrays |= {name: values for name in OPTIONAL if (values := getattr(columns, name)) is not None}
    words: dict[str, list[str]] = {}
    for name, values in columns.extra.items():
        if values.dtype == object:
            words[name], values = (list(part) for part in np.unique(values.astype(str), return_inverse=True))
        arrays[f"extra {name}"] = np.asarray(values)
    return plan.store.write(f"finished/{number}", {"words": words}, **arrays)


def read_columns(plan: Plan, number: int) -> Columns:
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
