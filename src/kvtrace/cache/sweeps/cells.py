"""One cell of a sweep -> one row of its table; if the cell fails, the column `error` holds the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..._base.errors import InputError, KvtraceError, UsageError
from ..._base.units import leading_rows
from ..._base.workers import place_of
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, remarks
from ..demand import BlockDemand
from ..engines import DEFAULTS
from ..many_settings import gap_to, optimum_of
from ..policies import is_users
from ..simulation import run
from .grid import Cell

Row = dict[str, Any]
OnProgress = Callable[[int], None]  # requests served

ENGINE_OPTIONS: tuple[str, ...] = tuple(DEFAULTS)
COUNTS: tuple[str, ...] = (
    "requests", "hit_blocks", "blocks", "hit_tokens", "tokens", "request_hits", "requests_with_blocks",
    "block_hit_rate", "token_hit_rate", "request_hit_rate", "evictions", "early_frees", "warm_up_requests",
)  # fmt: skip
SETTINGS: tuple[str, ...] = ("trace", "block_size", "engine", "mode", "schedule", "policy", "capacity", "seed")
GAP: tuple[str, ...] = ("belady_hit_blocks", "gap_to_belady")
COLUMNS: tuple[str, ...] = (
    *SETTINGS, "capacity_tokens", "capacity_bytes", *ENGINE_OPTIONS, *COUNTS, *GAP, "warning", "error",
)  # fmt: skip


def row_of(cell: Cell, trace: Trace, demand: BlockDemand | None = None, on_progress: OnProgress | None = None) -> Row:
    """Simulate a cell; a value for each column, None where the column does not apply or the cell failed."""
    from ..core.pool import failure

    fault: str | None = None
    try:
        done = run(cell.setting, trace, demand, on_progress)
    except (UsageError, InputError) as error:
        fault = str(error)
    except (KvtraceError, MemoryError, InterruptedError):
        raise
    except Exception as error:
        if not is_users(cell.setting.policy):
            raise
        _, place = failure(error) or (None, place_of(error))
        fault = f"Policy {cell.setting.policy} failed, {place}."
    if fault is not None:
        if on_progress is not None:
            on_progress(len(trace))  # its requests are done, too
        return _settings(cell, trace) | {"error": fault}
    counted = replace(done, warm_up=leading_rows(cell.warm_up, trace.timestamp))
    values: dict[str, Any] = {**counted.to_dict()}
    counts = {name: values[name] for name in (*ENGINE_OPTIONS, *COUNTS) if name in values}
    warnings = [cell.setting.warning, *remarks(trace, trace.meta, PREFIXES).values()]
    return _settings(cell, trace) | counts | {"warning": " ".join(filter(None, warnings)) or None}


def with_gaps(cells: Sequence[Cell], rows: Sequence[Row]) -> list[Row]:
    """The rows, with the gap to belady where the sweep has a cell of belady that bounds them."""
    optima = {
        _bound_of(cell): row
        for cell, row in zip(cells, rows, strict=True)
        if cell.setting.policy == "belady" and row["error"] is None
    }
    return [
        row | gap_to(optimum, row) if (optimum := optima.get(_bound_of(cell))) and row["error"] is None else row
        for cell, row in zip(cells, rows, strict=True)
    ]


def _bound_of(cell: Cell) -> tuple[Any, ...]:
    """The values that a cell shares with its bound: workload, capacity and what it counts, mode, schedule."""
    optimum = optimum_of(cell.setting)
    counts = dict(optimum.engine_options).get("capacity_counts", "total")
    return cell.workload, optimum.capacity, counts, optimum.mode, optimum.schedule


def _settings(cell, trace) -> Row:
    setting, source, per_token = cell.setting, cell.workload.source, cell.kv_bytes_per_token
    tokens = setting.capacity * trace.block_size
    return dict.fromkeys(COLUMNS) | {
        "trace": source.label, "block_size": trace.block_size, "engine": setting.engine, "mode": setting.mode,
        "schedule": str(setting.schedule), "policy": setting.policy, "capacity": setting.capacity, "seed": source.seed,
        "capacity_tokens": tokens, "capacity_bytes": None if per_token is None else tokens * per_token,
    }  # fmt: skip
