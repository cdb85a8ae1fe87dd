"""The tables, the JSON and the CSV of `kvtrace simulate`, and the open and the closed loop side by side.

The difference of a closed loop is that to the open loop before it.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from math import lcm
from typing import Any, BinaryIO

from .._base.results import column, columns_in, varies
from .._base.tables import TextTable, cell, csv_text
from .._base.units import GIB
from ..cache.simulation import ROOTS_FIRST, SCHEMA, Simulation, evicts_roots_first, gap_to
from ..serving.instances import FleetSimulation, is_routed
from ..serving.run import Isolation, sentence
from ..serving.serving_run import ServingRun
from ..trace.hits import RATES
from ..trace.trace import Trace

COMMON = ("engine", "mode", "schedule", "policy")  # columns that move into the title if all rows have the same value

BESIDE_RUNS = {  # values that depend on more than one run, or on bytes; they follow those of the run
    "capacity_bytes": column("GiB", ",.2f", scale=1 / GIB, rank=2, place=10),
    "gap_to_belady": column(
        "gap to belady", ".4f", rank=2, place=14,
        meaning="the block hit rate that the best possible eviction order would add",
    ),
}  # fmt: skip
VIEWS = {"merge": "domains are merged", "split": "domains are kept apart"}
OTHER_VIEW = "domains are kept apart after the shared tokens"


def to_dict(trace: Trace, results: list[dict[str, Any]], deployment: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object: figures of the trace, the deployment if there is one, and one dictionary for each result."""
    return {
        "schema": SCHEMA, "requests": len(trace), "block_size": trace.block_size, "working_set": trace.working_set,
        **({} if deployment is None else {"deployment": deployment}), "results": results,
    }  # fmt: skip


def result(
    simulation: Simulation,
    optimum: Simulation | None = None,
    *,
    kv_bytes_per_token: int | None = None,
    gpus: int = 1,
    window_ms: float | None = None,
    isolation: Isolation | None = None,
) -> dict[str, Any]:
    """The counts and rates of a simulation; the gap to the offline optimum and the cost of isolation, if known."""
    values: dict[str, Any] = {**simulation.to_dict()}
    if kv_bytes_per_token is not None:
        layout = simulation.setting.layout
        per_block = gpus * layout.block_bytes if layout else simulation.trace.block_size * kv_bytes_per_token
        values["capacity_bytes"] = simulation.setting.capacity * per_block
    if optimum is not None:
        values |= gap_to(optimum.hits.to_dict(), values)
    if window_ms is not None:
        values["over_time"] = simulation.over_time(window_ms)
    if isolation is not None:
        values["isolation"] = isolation.to_dict()
    return values


def isolation_notes(values: dict[str, Any]) -> list[str]:
    """What isolation costs at the largest capacity of the first setting; nothing for a trace without domains."""
    first = values["results"][0]
    if "isolation" not in first:
        return []
    same = [row for row in values["results"] if all(row[name] == first[name] for name in COMMON)]
    row = max(same, key=lambda row: row["capacity"])
    view = row["isolation"]["view"]
    where = f"{row['engine']}, {row['policy']}, {row['capacity']:,} blocks: " if len(values["results"]) > 1 else ""
    return [f"{VIEWS.get(view, OTHER_VIEW)} (--domains {view}); {where}{sentence(row['isolation'])}."]


def layout_notes(values: dict[str, Any]) -> list[str]:
    """The cache groups of each engine that has some.

    >>> group = {"layers": 12, "block_size": 512, "window": 0}
    >>> groups = [group | {"kind": "window", "window": 128}, group | {"kind": "full"}]
    >>> layout_notes({"results": [{"engine": "vllm", "layout": {"groups": groups}}]})
    ['vllm has 2 cache groups: 12 window 128 + 12 full. Hits are multiples of 512 tokens.']
    """
    layouts = {row["engine"]: row["layout"]["groups"] for row in values["results"] if "layout" in row}
    notes = []
    for engine, groups in layouts.items():
        number = "1 cache group" if len(groups) == 1 else f"{len(groups)} cache groups"
        alike = Counter(map(_group_in_words, groups))
        words = " + ".join(f"{count} x ({group})" if count > 1 else group for group, count in alike.items())
        step = lcm(*(group["block_size"] for group in groups))
        notes.append(f"{engine} has {number}: {words}. Hits are multiples of {step:,} tokens.")
    return notes


def _group_in_words(group: dict[str, Any]) -> str:
    return f"{group['layers']} {group['kind']}" + (f" {group['window']:,}" if group["window"] else "")


def warning(simulation: Simulation) -> str | None:
    """One line on a run whose instances had very uneven loads, or with a drafter, or None."""
    uneven = simulation.warning if isinstance(simulation, FleetSimulation) else None
    return uneven or (simulation.setting.warning if simulation.setting.drafting else None)


def overload_notes(runs: Iterable[Simulation]) -> list[str]:
    """A sentence on the overload of the runs, for the largest load; nothing if the service of each is steady."""
    rows = list(runs)
    over = [(run.overload, run.instances) for run in rows if isinstance(run, ServingRun) and run.overload]
    if not over:
        return []
    worst, instances = max(over, key=lambda row: row[0].load)
    some = f" {len(over):,} of {len(rows):,} rows are overloaded; this is the largest load." if len(rows) > 1 else ""
    return [f"{worst.sentence(instances)}{some}"]


def tables(values: dict[str, Any], runs: Iterable[Simulation], *, verbose: bool = False) -> list[TextTable]:
    """A table with one row for each result, then tables of time windows and instances if there are any.

    Args:
        values: The object of `to_dict`.
        runs: The simulations, whose classes have the columns.
        verbose: Also print evictions, and the load of each instance.
    """
    results = values["results"]
    table = TextTable(_title(values), remedy="use --csv or a wider terminal")
    kinds = dict.fromkeys(map(type, runs))
    columns = {key: each for kind in kinds for key, each in columns_in(kind).items()}
    table.add_results(columns | BESIDE_RUNS, results, verbose=verbose)
    if names := _roots_first(results):
        table.legend[", ".join(names)] = ROOTS_FIRST
    routed = is_routed("router", results)
    if routed and not verbose:
        table.caption = "Add -v for the load and the hits of each instance."
    instances = [_instances(row) for row in results] if routed and verbose else []
    return [table, *instances, *(_windows(row) for row in results if "over_time" in row)]


def _roots_first(results) -> list[str]:
    """The policies of a flat pool that can evict a parent before its children; tiers have no other pool."""
    if "tiers" in results[0]:
        return []
    settings = dict.fromkeys((row["engine"], row["policy"], row.get("pool", "flat")) for row in results)
    return [policy for engine, policy, pool in settings if evicts_roots_first(engine, policy, pool)]


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


def _title(values):
    row = values["results"][0]
    same = [name for name in COMMON[:3] if not varies(name, values["results"])]
    phrases = []
    if "engine" in same:
        phrases.append(f"engine {row['engine']}")
    if "mode" in same and row["mode"] != "block":
        phrases.append(f"mode {row['mode']}")
    if "schedule" in same:
        phrases.append(in_words(row["schedule"]))
    if "prefill_workers" in row or is_routed("router", values["results"]):
        phrases.append(_fleet_in_words(row))
    return ", ".join(["Hits of a prefix cache", *phrases, f"blocks of {values['block_size']:,} tokens"])


def _fleet_in_words(row):
    """The instances of a result, which may be workers of two kinds."""
    if "prefill_workers" not in row:
        return f"{row['instances']:,} instances"
    workers = "worker" if row["decode_workers"] == 1 else "workers"
    return f"{row['prefill_workers']:,} prefill and {row['decode_workers']:,} decode {workers}"


def in_words(text: str) -> str:
    """A schedule in words.

    >>> [in_words(text) for text in ("serial", "concurrency:8", "open-loop:30")]
    ['one request at a time', '8 requests at a time', '30 ms per output token']
    """
    kind, _, value = text.partition(":")
    words = {
        "events": "served in simulated time",
        "closed-loop": "sessions in a closed loop",
        "serial": "one request at a time",
        "concurrency": f"{value} requests at a time",
        "open-loop": f"{value} ms per output token",
    }
    return words.get(kind, f"schedule {text}")


OF_LOADS = {name: column(name.replace("_", " "), ",") for name in ("requests", "tokens", "blocks", "hit_blocks")}
OF_LOADS = {"instance": column("instance", ",", rank=0), **OF_LOADS, "block_hit_rate": RATES["block_hit_rate"]}


def _instances(row):
    """A table of the load and the hits of each instance."""
    kind = "prefill workers" if "prefill_workers" in row else "instances"
    title = f"{row['instances']} {kind} of {row['capacity']:,} blocks, policy {row['policy']}, router {row['router']}"
    return TextTable(title).add_results(OF_LOADS, row["loads"])


OF_WINDOWS = {
    "start_ms": column("from (s)", lambda ms: f"{ms / 1000:,.0f}", rank=0),
    "requests": column("requests", ","), "blocks": column("blocks", ","), **RATES,
}  # fmt: skip


def _windows(row):
    title = f"{row['engine']}, {row['policy']}, {row['capacity']:,} blocks"
    return TextTable(title).add_results(OF_WINDOWS, row["over_time"])


def _flat(row):
    counts = ("capacity", "hit_blocks", "loaded_blocks", "peers_loaded_blocks", "stored_blocks", "evicted_blocks")
    tiers = {f"{tier['name']}_{name}": tier[name] for tier in row.get("tiers", []) for name in counts if name in tier}
    flat = {name: value for name, value in row.items() if not isinstance(value, (dict, list))} | tiers
    for name, value in row.items():
        if isinstance(value, dict) and name != "expected_error":  # a sentence beside the table has it
            flat |= {f"{name}_{key}": nested for key, nested in value.items()}
    if "over_time" not in row:
        return [flat]
    setting = {name: flat[name] for name in ("engine", "policy", "mode", "schedule", "capacity")}
    return [setting | window for window in row["over_time"]]


LOOP_FIGURES = {  # name in the table -> keys of a result, and how it is written
    "block hit rate": (("block_hit_rate",), "{:.4f}"),
    "token hit rate": (("token_hit_rate",), "{:.4f}"),
    "TTFT p50 (s)": (("ttft_s", "p50"), "{:.3f}"),
    "TTFT p90 (s)": (("ttft_s", "p90"), "{:.3f}"),
    "TTFT p99 (s)": (("ttft_s", "p99"), "{:.3f}"),
    "TPOT p50 (ms)": (("tpot_s", "p50"), "{:.1f}"),
    "end to end p50 (s)": (("e2e_s", "p50"), "{:.3f}"),
    "requests per second": (("requests_per_s",), "{:.3f}"),
    "requests counted": (("requests",), "{:,.0f}"),
}


def compare_loops(results: list[dict[str, Any]]) -> None:
    """Add to each result of a closed loop its difference to the open loop, the result before it.

    >>> rows = [{"requests_per_s": 2.0}, {"requests_per_s": 3.5, "loop": {"lanes": 4}}]
    >>> compare_loops(rows)
    >>> rows[1]["difference"]
    {'requests_per_s': 1.5}
    """
    for before, row in pairwise(results):
        if "loop" in row and "loop" not in before:
            _add_difference(before, row)


def _add_difference(before: dict[str, Any], row: dict[str, Any]) -> None:
    keys = [keys for keys, _ in LOOP_FIGURES.values() if keys[0] in row and keys[0] != "requests"]
    row["difference"] = {"_".join(keys): _value(row, keys) - _value(before, keys) for keys in keys}


def compare_fleets(results: list[dict[str, Any]]) -> None:
    """Add to each result of a changing fleet its difference to the fixed fleet, the result before it.

    >>> rows = [{"block_hit_rate": 0.5, "fleet": {"kind": "fixed"}}]
    >>> rows += [{"block_hit_rate": 0.25, "fleet": {"kind": "changing"}}]
    >>> compare_fleets(rows)
    >>> rows[1]["difference"]
    {'block_hit_rate': -0.25}
    """
    for before, row in _fleet_pairs(results):
        _add_difference(before, row)


def _fleet_pairs(results: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(before, row) for before, row in pairwise(results) if row.get("fleet", {}).get("kind") == "changing"]


def fleet_tables(results: list[dict[str, Any]]) -> list[TextTable]:
    """A table for each result of a changing fleet: its phases beside those of the fixed fleet."""
    pairs = _fleet_pairs(results)
    return [_fleet_table(before, row, many=len(pairs) > 1) for before, row in pairs]


def _fleet_table(before: dict[str, Any], row: dict[str, Any], *, many: bool) -> TextTable:
    fixed, fleet = before["fleet"], row["fleet"]
    which = f", {row['engine']}, {row['policy']}, {row['capacity']:,} blocks, {row['router']}" if many else ""
    table = TextTable(f"Fixed and changing fleet, by phase{which}")
    in_time = "ttft_s" in row
    table.add_columns(["from (s)", "instances", "requests", "token hit rate", "fixed fleet"], right=True)
    if in_time:
        table.add_columns(["TTFT p50 (s)", "fixed fleet", "TTFT p99 (s)", "fixed fleet"], right=True)
    for old, new in zip(fixed["phases"], fleet["phases"], strict=True):
        cells = [f"{new['start_s']:,.0f}", f"{new['instances']:,}", f"{new['requests']:,}"]
        cells += [f"{phase['token_hit_rate']:.4f}" for phase in (new, old)]
        if in_time:
            cells += [f"{phase['ttft_s'][name]:.3f}" for name in ("p50", "p99") for phase in (new, old)]
        table.add_row(*cells)
    lost, points = before["hit_tokens"] - row["hit_tokens"], 100 * (before["token_hit_rate"] - row["token_hit_rate"])
    table.caption = (
        f"The changes cost {lost:,} hit tokens ({points:.2f} points of token hit rate); "
        f"{fleet['instance_hours']:,.1f} instance-hours, {fixed['instance_hours']:,.1f} if fixed."
    )
    return table


def loop_tables(results: list[dict[str, Any]]) -> list[TextTable]:
    """A table for each result of a closed loop: the open loop, the closed one, and the difference."""
    pairs = [(before, row) for before, row in pairwise(results) if "loop" in row and "loop" not in before]
    return [_loop_table(before, row, many=len(pairs) > 1) for before, row in pairs]


def _loop_table(before: dict[str, Any], row: dict[str, Any], *, many: bool) -> TextTable:
    loop = row["loop"]
    which = f", {row['engine']}, {row['policy']}, {row['capacity']:,} blocks, {row['router']}" if many else ""
    table = TextTable(f"Open and closed loop, {loop['lanes']:,} {'lane' if loop['lanes'] == 1 else 'lanes'}{which}")
    table.add_columns([""])
    table.add_columns(["open", "closed", "difference"], right=True)
    for name, (keys, text) in LOOP_FIGURES.items():
        scale = 1000 if "(ms)" in name else 1
        old, new = scale * _value(before, keys), scale * _value(row, keys)
        table.add_row(name, text.format(old), text.format(new), text.replace("{:", "{:+").format(new - old))
    if before["rejected"] or row["rejected"]:
        old, new = before["rejected"], row["rejected"]
        table.add_row("requests rejected", f"{old:,}", f"{new:,}", f"{new - old:+,}")
    table.add_row("sessions completed", "", f"{loop['sessions_completed']:,} of {loop['plays']:,}", "")
    table.add_row("sessions per hour", "", f"{loop['sessions_per_hour']:,.1f}", "")
    length = f"{loop['window_s']:,.0f} s"
    table.caption = f"Counted: the requests of a window of {length}. open: requests arrive at the times of the trace."
    if loop["idle_skipped_s"]:
        table.caption += f" Idle caps skipped {loop['idle_skipped_s']:,.0f} s without a request."
    return table


def _value(row: dict[str, Any], keys: tuple[str, ...]) -> float:
    value: Any = row
    for key in keys:
        value = value[key]
    return float(value)
