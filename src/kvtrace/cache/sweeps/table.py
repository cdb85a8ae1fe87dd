"""The table of a sweep, one row per cell, as CSV, JSON, JSON lines or Parquet, by the name of the file.

The row of a cell that fails has the reason in the column `error`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..._base.errors import InputError, KvtraceError, UsageError
from ..._base.files import SUFFIXES, is_std
from ..._base.output_files import write_atomically
from ..._base.results import PlottedResult, columns_in
from ..._base.tables import csv_text
from ..._base.units import leading_rows
from ..._base.workers import place_of
from ...formats import parquet, writing
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, remarks
from ..demand import BlockDemand
from ..engines import DEFAULTS
from ..policies import is_users
from ..simulation import Simulation, gap_to, optimum_of, run
from .grid import Cell

SweepRow = dict[str, Any]
OnProgress = Callable[[int], None]  # requests served

ENGINE_OPTIONS: tuple[str, ...] = tuple(DEFAULTS)
SETTINGS: tuple[str, ...] = ("trace", "block_size", "engine", "mode", "schedule", "policy", "capacity", "seed")
OF_RUNS = columns_in(Simulation)
COUNTS: tuple[str, ...] = tuple(
    name for name in OF_RUNS if name not in (*SETTINGS, "capacity_tokens", *ENGINE_OPTIONS, "layout", "drafting")
)
GAP: tuple[str, ...] = ("belady_hit_blocks", "gap_to_belady")
COLUMNS: tuple[str, ...] = (
    *SETTINGS, "capacity_tokens", "capacity_bytes", *ENGINE_OPTIONS, *COUNTS, *GAP, "warning", "error",
)  # fmt: skip


def row_of(
    cell: Cell, trace: Trace, demand: BlockDemand | None = None, on_progress: OnProgress | None = None
) -> SweepRow:
    """Simulate a cell; a value for each column, None where the column does not apply or the cell failed."""
    from ..core.pool import failure

    fault: str | None = None
    try:
        simulation = run(cell.setting, trace, demand, on_progress)
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
            on_progress(len(trace))  # its requests are over, too
        return _settings(cell, trace) | {"error": fault}
    counted = replace(simulation, warm_up=leading_rows(cell.warm_up, trace.timestamp))
    values: dict[str, Any] = {**counted.to_dict()}
    counts = {name: values[name] for name in (*ENGINE_OPTIONS, *COUNTS) if name in values}
    warnings = [cell.setting.warning, *remarks(trace, trace.meta, PREFIXES).values()]
    return _settings(cell, trace) | counts | {"warning": " ".join(filter(None, warnings)) or None}


def with_gaps(cells: Sequence[Cell], rows: Sequence[SweepRow]) -> list[SweepRow]:
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


def _settings(cell, trace) -> SweepRow:
    setting, source, per_token = cell.setting, cell.workload.source, cell.kv_bytes_per_token
    tokens = setting.capacity * trace.block_size
    return dict.fromkeys(COLUMNS) | {
        "trace": source.label, "block_size": trace.block_size, "engine": setting.engine, "mode": setting.mode,
        "schedule": str(setting.schedule), "policy": setting.policy, "capacity": setting.capacity, "seed": source.seed,
        "capacity_tokens": tokens, "capacity_bytes": None if per_token is None else tokens * per_token,
    }  # fmt: skip


SCHEMA = 2  # version of the keys and values of to_dict
FORMS = (".csv", ".json", ".jsonl", ".parquet")
TEXTS = {*SETTINGS, *ENGINE_OPTIONS, "warning", "error"} - {"block_size", "capacity", "seed"}
REALS = {name for name in COUNTS if str(OF_RUNS[name].format).endswith("f")} | {"request_hits", "gap_to_belady"}


@dataclass(frozen=True, repr=False)
class SweepTable(PlottedResult):
    """The rows of a sweep, in the order of its axes, each with every column."""

    rows: list[SweepRow]

    _shown = (
        "trace", "engine", "policy", "capacity", "block_size", "seed", "hit_blocks", "block_hit_rate", "token_hit_rate",
    )  # fmt: skip

    def _headline(self) -> str:
        counts = (len({row[name] for row in self.rows}) for name in ("trace", "policy", "capacity"))
        different = "traces={}, policies={}, capacities={}".format(*counts)
        return f"{len(self.rows):,} cells, {different}, failed={len(self.failed)}"

    def _columns(self) -> dict[str, list[Any]]:
        return {name: [row[name] for row in self.rows] for name in COLUMNS}

    @property
    def failed(self) -> list[SweepRow]:
        """The rows of the cells that failed."""
        return [row for row in self.rows if row["error"]]

    def to_dict(self) -> dict[str, Any]:
        """Keys as https://github.com/kvtrace/kvtrace/blob/main/docs/cache/sweep.md lists them."""
        return {"schema": SCHEMA, "results": self.rows}

    def write(self, path: str | Path) -> None:
        """Write the whole table or nothing: .csv, .json, .jsonl or .parquet, also with .gz or .zst; `-`: CSV to stdout.

        >>> SweepTable([]).write("table.txt")
        Traceback (most recent call last):
        kvtrace._base.errors.UsageError: table.txt: unknown file type. Try .csv, .json, .jsonl or .parquet.
        """
        form = check_output(path)
        with write_atomically(path) as stream:
            stream.write(WRITERS[form](self.rows))


def check_output(path: str | Path) -> str:
    """The file type of a name; UsageError or KvtraceError if it cannot be written, before the sweep runs."""
    if is_std(path):
        return ".csv"
    bare = Path(path)
    form = (bare.with_suffix("") if bare.suffix in SUFFIXES else bare).suffix
    if form not in FORMS:
        raise UsageError(f"{path}: unknown file type. Try .csv, .json, .jsonl or .parquet.")
    if form == ".parquet":
        parquet.require()
    writing.require_place(path)
    return form


def _csv(rows) -> bytes:
    return csv_text(rows, COLUMNS).encode()


def _json(rows) -> bytes:
    return json.dumps(SweepTable(rows).to_dict(), indent=1).encode() + b"\n"


def _jsonl(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _parquet(rows) -> bytes:
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([
        (name, pyarrow.string() if name in TEXTS else pyarrow.float64() if name in REALS else pyarrow.int64())
        for name in COLUMNS
    ])  # fmt: skip
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), sink)
    return sink.getvalue()


WRITERS = {".csv": _csv, ".json": _json, ".jsonl": _jsonl, ".parquet": _parquet}
