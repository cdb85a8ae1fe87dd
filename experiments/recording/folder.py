"""A recording as a folder: vLLM's request metrics in the form of LLMServingSim's benchmark, and the measured steps."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.formats.writing import write

from .executor import totals
from .recorder import Recorded

TICK_S = 1.0


def write_folder(
    path: str | Path,
    recorded: Recorded,
    *,
    meta: dict[str, Any],
    config: dict[str, Any],
    gpu: dict[str, Any],
    slots: int,
) -> None:
    """Write requests.jsonl, steps.csv, timeseries.csv, trace.jsonl, and meta, config and gpu as JSON."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "requests.jsonl").open("w") as file:
        for row in request_rows(recorded):
            file.write(json.dumps(row) + "\n")
    _write_csv(folder / "steps.csv", totals(recorded.steps))
    _write_csv(folder / "timeseries.csv", timeseries(recorded, slots))
    write(recorded.trace, folder / "trace.jsonl", format="mooncake")
    for name, values in (("meta", meta), ("config", config), ("gpu", gpu)):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")


def request_rows(recorded: Recorded) -> list[dict[str, Any]]:
    """The rows of requests.jsonl; times in seconds of the recording's clock, which begins at the first arrival."""
    trace, outcomes = recorded.trace, recorded.outcomes
    columns = {
        "input_toks": trace.input_length, "output_toks": trace.output_length, "arrival_time": trace.timestamp / 1000,
        "queued_ts": trace.timestamp / 1000, "scheduled_ts": outcomes["started"], "first_token_ts": outcomes["first"],
        "last_token_ts": outcomes["ended"], "cached_toks": outcomes["cached"], "preemptions": outcomes["preempted"],
        "recomputed_toks": outcomes["recomputed"],
    }  # fmt: skip
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [{"request_id": f"recorded-{row}", **dict(zip(columns, one, strict=True))} for row, one in enumerate(values)]


def timeseries(recorded: Recorded, slots: int) -> dict[str, np.ndarray]:
    """Each second's throughput, and the requests and the KV use at its end."""
    steps, outcomes, arrival = totals(recorded.steps), recorded.outcomes, recorded.trace.timestamp / 1000
    ends = steps["begin"] + steps["seconds"]
    ticks = np.arange(1, int(np.ceil(ends.max() / TICK_S)) + 1) * TICK_S
    tick = np.minimum((ends // TICK_S).astype(np.int64), len(ticks) - 1)
    prompts = np.bincount(tick, weights=steps["tokens"] - steps["decodes"], minlength=len(ticks)) / TICK_S
    firsts = np.minimum((outcomes["first"] // TICK_S).astype(np.int64), len(ticks) - 1)
    outputs = np.bincount(tick, weights=steps["decodes"], minlength=len(ticks)) + np.bincount(
        firsts, minlength=len(ticks)
    )
    latest = np.maximum(np.searchsorted(steps["begin"], ticks, "right") - 1, 0)  # tick -> its step
    working = ends[latest] > ticks  # else nothing runs, and nothing is held

    def between(begin, end):
        return np.searchsorted(np.sort(begin), ticks, "right") - np.searchsorted(np.sort(end), ticks, "right")

    return {
        "t": ticks, "prompt_throughput": prompts, "gen_throughput": outputs / TICK_S,
        "running": between(outcomes["started"], outcomes["ended"]), "waiting": between(arrival, outcomes["started"]),
        "kv_cache_pct": np.round(np.where(working, 100 * steps["held"][latest] / slots, 0.0), 2),
    }  # fmt: skip


def _write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
