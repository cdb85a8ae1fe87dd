"""The tables, the JSON and the CSV of `kvtrace simulate`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, BinaryIO

from .._base.csv_text import cell, csv_text
from .._base.tables import TextTable
from ..cache.engines import DEFAULTS
from ..cache.simulation import SCHEMA, Simulation
from ..serving.simulations import gap_to
from ..trace.trace import Trace
from .curve_tables import GIB, RATES

COMMON = ("engine", "mode", "schedule", "policy")  # columns that move into the title if all rows have the same value


def to_dict(trace: Trace, results: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON object: figures of the trace, and one dictionary for each result."""
    return {
        "schema": SCHEMA, "requests": len(trace), "block_size": trace.block_size, "working_set": trace.working_set,
        "results": results,
    }  # fmt: skip


def result(
    simulation: Simulation,
    optimum: Simulation | None = None,
    *,
    kv_bytes_per_token: int | None = None,
    window_ms: float | None = None,
) -> dict[str, Any]:
    """The counts and rates of a simulation, and the gap to the offline optimum if it is known."""
    values: dict[str, Any] = {**simulation.to_dict()}
    if kv_bytes_per_token is not None:
        values["capacity_bytes"] = values["capacity_tokens"] * kv_bytes_per_token
    values |= gap_to(optimum, simulation)
    if window_ms is not None:
        values["over_time"] = simulation.over_time(window_ms)
    return values


def tables(values: dict[str, Any]) -> list[TextTable]:
    """A table with one row for each result, then tables of instances and of time windows if there are any."""
    results = values["results"]
    same = {name for name in COMMON[:3] if len({row[name] for row in results}) == 1}
    table = _table(_title(values, same), [name for name in COMMON if name not in same])
    options = [name for name, default in DEFAULTS.items() if any(row.get(name, default) != default for row in results)]
    tiers = [tier["name"] for tier in results[0].get("tiers", [])]
    for name in options:
        table.add_column(name.replace("_", " "))
    routed = "router" in results[0]
    if routed:
        table.add_column("router")
    has_bytes, has_gap = ("capacity_bytes" in results[0]), any("gap_to_belady" in row for row in results)
    columns = ["capacity", *(["GiB"] if has_bytes else []), "hit blocks", *(f"in {name}" for name in tiers)]
    columns += [f"{name} hit rate" for name in RATES.values()] + (["gap to belady"] if has_gap else [])
    columns += ["imbalance"] if routed else []
    timed = "ttft_s" in results[0]
    columns += ["TTFT p50", "p90", "p99", "TPOT p50", "requests/s"] if timed else []
    table.add_columns((*columns, "evictions", "early frees"), right=True)
    for row in results:
        table.add_row(
            *(str(row[name]) for name in COMMON if name not in same), *(row.get(name, "") for name in options),
            *([row["router"]] if routed else []),
            f"{row['capacity']:,}", *([f"{row['capacity_bytes'] / GIB:,.2f}"] if has_bytes else []),
            f"{row['hit_blocks']:,}", *(f"{tier['hit_blocks']:,}" for tier in row.get("tiers", [])),
            *(f"{row[rate]:.4f}" for rate in RATES),
            *([f"{row['gap_to_belady']:.4f}" if "gap_to_belady" in row else ""] if has_gap else []),
            *([f"{row['imbalance']:.2f}"] if routed else []),
            *(_latencies(row) if timed else []),
            f"{row['evictions']:,}", f"{row['early_frees']:,}",
        )  # fmt: skip
    instances = [_instances(row) for row in results] if routed else []
    return [table, *instances, *(_windows(row) for row in results if "over_time" in row)]


def as_csv(results: Iterable[dict[str, Any]]) -> str:
    """A header, and one line for each result (or for each time window), with the keys of the JSON."""
    return csv_text([flat for row in results for flat in _flat(row)])


def write_per_request(simulations: list[Simulation], stream: BinaryIO) -> None:
    """Write CSV, one line for each request: arrival, lengths, blocks, and the hit blocks of each simulation."""
    trace = simulations[0].trace
    settings = [simulation.setting for simulation in simulations]
    names = [f"{setting.engine}/{setting.policy}/{setting.capacity}" for setting in settings]
    columns = [trace.timestamp, trace.input_length, trace.output_length, trace.prompt_blocks]
    columns += [simulation.hit_blocks for simulation in simulations]
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    names = names if len(simulations) > 1 else ["hit_blocks"]
    writer.writerow(["request", "timestamp", "input_length", "output_length", "blocks", *map(cell, names)])
    writer.writerows(zip(range(len(trace)), *(column.tolist() for column in columns), strict=True))
    text.detach()


def _title(values, same):
    row = values["results"][0]
    phrases = [f"{name} {row[name]}" for name in COMMON[:3] if name in same]
    return ", ".join(["Hits of a prefix cache", *phrases, f"blocks of {values['block_size']:,} tokens"])


def _table(title, names):
    table = TextTable(title)
    table.add_columns(names)
    return table


def _latencies(row):
    ttft = (f"{row['ttft_s'][name]:.3f} s" for name in ("p50", "p90", "p99"))
    return [*ttft, f"{1000 * row['tpot_s']['p50']:.1f} ms", f"{row['requests_per_s']:.2f}"]


def _instances(row):
    """A table of the load and the hits of each instance."""
    table = _table(f"{row['instances']} instances of {row['capacity']:,} blocks, {row['router']}", [])
    table.add_columns(["instance", "requests", "tokens", "blocks", "hit blocks", "block hit rate"], right=True)
    for load in row["loads"]:
        table.add_row(
            *(f"{load[name]:,}" for name in ("instance", "requests", "tokens", "blocks", "hit_blocks")),
            f"{load['block_hit_rate']:.4f}",
        )
    return table


def _windows(row):
    table = _table(f"{row['engine']}, {row['policy']}, {row['capacity']:,} blocks", [])
    table.add_columns(("from (s)", "requests", "blocks", *(f"{name} hit rate" for name in RATES.values())), right=True)
    for window in row["over_time"]:
        table.add_row(
            f"{window['start_ms'] / 1000:,.0f}", f"{window['requests']:,}", f"{window['blocks']:,}",
            *(f"{window[rate]:.4f}" for rate in RATES),
        )  # fmt: skip
    return table


def _flat(row):
    tiers = {
        f"{tier['name']}_{name}": tier[name] for tier in row.get("tiers", []) for name in ("capacity", "hit_blocks")
    }
    flat = {name: value for name, value in row.items() if not isinstance(value, (dict, list))} | tiers
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{key}": nested for key, nested in value.items()}
    if "over_time" not in row:
        return [flat]
    setting = {name: flat[name] for name in ("engine", "policy", "mode", "schedule", "capacity")}
    return [setting | window for window in row["over_time"]]
