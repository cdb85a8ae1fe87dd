"""What `kvtrace simulate` shows: a table for people, and rows for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, BinaryIO

from rich.table import Table

from ..cache.engines import DEFAULTS
from ..cache.simulation import SCHEMA, Simulation
from ..trace.trace import Trace
from .curve_tables import GIB, RATES

COMMON = ("engine", "mode", "schedule", "policy")  # columns that go into the title where all rows have one value


def to_dict(trace: Trace, results: list[dict[str, Any]]) -> dict[str, Any]:
    """One JSON object: what the trace is, and a dictionary a result."""
    return {
        "schema": SCHEMA, "requests": len(trace), "block_size": trace.block_size, "working_set": trace.working_set,
        "results": results,
    }  # fmt: skip


def result(
    done: Simulation,
    optimum: Simulation | None = None,
    *,
    kv_bytes_per_token: int | None = None,
    window_ms: float | None = None,
) -> dict[str, Any]:
    """A simulation's counts and rates, with how far it stays behind the offline optimum where that is known."""
    values: dict[str, Any] = {**done.to_dict()}
    if kv_bytes_per_token is not None:
        values["capacity_bytes"] = values["capacity_tokens"] * kv_bytes_per_token
    if optimum is not None:
        best = optimum.hits
        values["belady_hit_blocks"] = best.hit_blocks
        values["gap_to_belady"] = best.block_hit_rate - values["block_hit_rate"]
    if window_ms is not None:
        values["over_time"] = done.over_time(window_ms)
    return values


def tables(found: dict[str, Any]) -> list[Table]:
    """The results, a row each; then each result's windows of time, where they were asked for."""
    results = found["results"]
    same = {name for name in COMMON[:3] if len({row[name] for row in results}) == 1}
    shown = _table(_title(found, same), [name for name in COMMON if name not in same])
    engine_options = [name for name, usual in DEFAULTS.items() if any(row.get(name, usual) != usual for row in results)]
    tiers = [tier["name"] for tier in results[0].get("tiers", [])]
    for name in engine_options:
        shown.add_column(name.replace("_", " "), no_wrap=True)
    routed = "router" in results[0]
    if routed:
        shown.add_column("router", no_wrap=True)
    has_bytes, has_gap = ("capacity_bytes" in results[0]), any("gap_to_belady" in row for row in results)
    columns = ["capacity", *(["GiB"] if has_bytes else []), "hit blocks", *(f"in {name}" for name in tiers)]
    columns += [f"{name} hit rate" for name in RATES.values()] + (["gap to belady"] if has_gap else [])
    columns += ["imbalance"] if routed else []
    timed = "ttft_s" in results[0]
    columns += ["TTFT p50", "p90", "p99", "TPOT p50", "requests/s"] if timed else []
    for name in (*columns, "evictions", "early frees"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in results:
        shown.add_row(
            *(str(row[name]) for name in COMMON if name not in same), *(row.get(name, "") for name in engine_options),
            *([row["router"]] if routed else []),
            f"{row['capacity']:,}", *([f"{row['capacity_bytes'] / GIB:,.2f}"] if has_bytes else []),
            f"{row['hit_blocks']:,}", *(f"{tier['hit_blocks']:,}" for tier in row.get("tiers", [])),
            *(f"{row[rate]:.4f}" for rate in RATES),
            *([f"{row['gap_to_belady']:.4f}" if "gap_to_belady" in row else ""] if has_gap else []),
            *([f"{row['imbalance']:.2f}"] if routed else []),
            *(_times(row) if timed else []),
            f"{row['evictions']:,}", f"{row['early_frees']:,}",
        )  # fmt: skip
    loads = [_loads(row) for row in results] if routed else []
    return [shown, *loads, *(_windows(row) for row in results if "over_time" in row)]


def as_csv(results: Iterable[dict[str, Any]]) -> str:
    """A header and a result a line, with the keys of the JSON; with windows of time, a window a line."""
    rows = [flat for row in results for flat in _flat(row)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_per_request(done: list[Simulation], stream: BinaryIO) -> None:
    """CSV, a request a line: its arrival, lengths, blocks, and the hit blocks of each simulation."""
    trace = done[0].trace
    names = [f"{one.setting.engine}/{one.setting.policy}/{one.setting.capacity}" for one in done]
    columns = [trace.timestamp, trace.input_length, trace.output_length, trace.prompt_blocks]
    columns += [one.hit_blocks for one in done]
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    names = names if len(done) > 1 else ["hit_blocks"]
    writer.writerow(["request", "timestamp", "input_length", "output_length", "blocks", *names])
    writer.writerows(zip(range(len(trace)), *(column.tolist() for column in columns), strict=True))
    text.detach()


def _title(found, same):
    row = found["results"][0]
    said = {
        "engine": f"engine {row['engine']}",
        "mode": f"mode {row['mode']}",
        "schedule": f"schedule {row['schedule']}",
    }
    return ", ".join(
        [
            "Hits of a prefix cache",
            *(said[name] for name in COMMON[:3] if name in same),
            f"blocks of {found['block_size']:,} tokens",
        ]
    )


def _table(title, names):
    shown = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        shown.add_column(name, no_wrap=True)
    return shown


def _times(row):
    ttft = (f"{row['ttft_s'][name]:.3f} s" for name in ("p50", "p90", "p99"))
    return [*ttft, f"{1000 * row['tpot_s']['p50']:.1f} ms", f"{row['requests_per_s']:.2f}"]


def _loads(row):
    """What each instance was sent."""
    shown = _table(f"{row['instances']} instances of {row['capacity']:,} blocks, {row['router']}", [])
    for name in ("instance", "requests", "tokens", "blocks", "hit blocks", "block hit rate"):
        shown.add_column(name, justify="right", no_wrap=True)
    for load in row["loads"]:
        shown.add_row(
            *(f"{load[name]:,}" for name in ("instance", "requests", "tokens", "blocks", "hit_blocks")),
            f"{load['block_hit_rate']:.4f}",
        )
    return shown


def _windows(row):
    shown = _table(f"{row['engine']}, {row['policy']}, {row['capacity']:,} blocks", [])
    for name in ("from (s)", "requests", "blocks", *(f"{name} hit rate" for name in RATES.values())):
        shown.add_column(name, justify="right", no_wrap=True)
    for window in row["over_time"]:
        shown.add_row(
            f"{window['start_ms'] / 1000:,.0f}", f"{window['requests']:,}", f"{window['blocks']:,}",
            *(f"{window[rate]:.4f}" for rate in RATES),
        )  # fmt: skip
    return shown


def _flat(row):
    tiers = {
        f"{tier['name']}_{name}": tier[name] for tier in row.get("tiers", []) for name in ("capacity", "hit_blocks")
    }
    flat = {name: value for name, value in row.items() if not isinstance(value, (dict, list))} | tiers
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{key}": one for key, one in value.items()}
    if "over_time" not in row:
        return [flat]
    named = {name: flat[name] for name in ("engine", "policy", "mode", "schedule", "capacity")}
    return [named | window for window in row["over_time"]]
