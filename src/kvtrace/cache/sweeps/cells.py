"""One cell of a sweep -> one row of its table; if the cell fails, the column `error` holds the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..._base.errors import InputError, KvtraceError, UsageError
from ..._base.lists import leading_rows
from ..._base.workers import place_of
from ...trace.trace import Trace
from ..demand import BlockDemand
from ..engines import DEFAULTS
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
COLUMNS: tuple[str, ...] = (*SETTINGS, "capacity_tokens", "capacity_bytes", *ENGINE_OPTIONS, *COUNTS, "error")


def row_of(cell: Cell, trace: Trace, demand: BlockDemand | None = None, on_progress: OnProgress | None = None) -> Row:
    """Simulate a cell; a value for each column, None where the column does not apply or the cell failed."""
    from ..core.python_policy import failure

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
    return _settings(cell, trace) | {name: values[name] for name in (*ENGINE_OPTIONS, *COUNTS) if name in values}


def _settings(cell, trace) -> Row:
    setting, source, per_token = cell.setting, cell.workload.source, cell.kv_bytes_per_token
    tokens = setting.capacity * trace.block_size
    return dict.fromkeys(COLUMNS) | {
        "trace": source.label, "block_size": trace.block_size, "engine": setting.engine, "mode": setting.mode,
        "schedule": str(setting.schedule), "policy": setting.policy, "capacity": setting.capacity, "seed": source.seed,
        "capacity_tokens": tokens, "capacity_bytes": None if per_token is None else tokens * per_token,
    }  # fmt: skip
