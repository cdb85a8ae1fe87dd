"""NVIDIA Dynamo's offline replay beside kvtrace: KVTRACE_CLIENTS=FOLDER python -m benchmarks.dynamo_replay TRACE.

Four tables: one request at a time; four workers at the trace's times; our simulation in time with its costs; and what
tells its KV router from ours. FOLDER has an environment `dynamo` with ai-dynamo-runtime. docs/serving/dynamo.md
explains the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import kvtrace
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting, build, simulate
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.schedulers.dynamo import DynamoCost, DynamoScheduler
from kvtrace.serving.simulation import open_loop
from kvtrace.trace.columns import replace_columns
from tests.reference.dynamo_router import Rules, decisions, routed
from tests.serving.test_dynamo_times import served

ROOT = Path(__file__).resolve().parent.parent
PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "dynamo/bin/python"
CAPACITIES = (1_000, 10_000, 300_000)  # blocks of the one worker
WORKERS, CAPACITY = 4, 5_000  # blocks of each
SCHEDULES = ("serial", "open-loop:5", "open-loop:10", "open-loop:30")
MS_PER_TOKEN = 10  # for the table of rules
SEEDS = range(5)
LOADS = (1, 8)
SCALE = np.array([1, 1, 1000, 1000, 1000, 1])  # of the times in seconds, to ms


@dataclass(frozen=True, eq=False)
class Replayed:
    """What Dynamo's replay did with a trace: its summary, and one value a request in each array."""

    version: str
    summary: dict[str, Any]
    worker: np.ndarray  # with several ranks: of n workers, rank r of worker w is r * n + w
    reused: np.ndarray  # tokens of the prompt that were cached
    admit: np.ndarray  # ms, as the two below
    first: np.ndarray
    end: np.ndarray
    readmitted: np.ndarray  # how often a request was preempted and came back
    first_reused: np.ndarray  # reused tokens at the first admission
    from_tier: np.ndarray  # those of them that came from the tier below

    def hit_blocks(self, block_size: int) -> np.ndarray:
        """Its reused tokens in blocks: whole ones only."""
        assert not (self.reused % block_size).any()
        return self.reused // block_size


def replay(
    trace: kvtrace.Trace, cases: Iterable[dict[str, Any]], expected: np.ndarray | None = None
) -> Iterator[Replayed]:
    """Each case, {"path", "engine", "settings"}, through Dynamo's replay in its own environment.

    `expected` tells requests apart that are alike in arrival and lengths: their workers, if these take no plain turns.
    """
    cases = [{"block_size": trace.block_size, **case} for case in cases]
    done = replay_lines(cases)
    assert done.returncode == 0, done.stderr[-2000:]
    log = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)  # without colours
    chosen = iter(re.findall(r"Selected worker.*?worker_id=(\d+).*?dp_rank=(\d+)", log))
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    for case, line in zip(cases, lines, strict=True):
        routes = case["settings"].get("router_mode") == "kv_router"
        ranks, count = case.get("ranks", 1), case["settings"].get("num_workers", 1)
        turn, pairs = np.arange(len(trace)) % (ranks * count), None
        if routes:
            pairs = np.array([next(chosen) for _ in range(len(trace))], dtype=int).T
        elif ranks > 1:
            pairs = turn % count, turn // count
        workers = expected if pairs is None else pairs[0] * ranks + pairs[1]
        seen = in_order(trace, **json.loads(line), routed=workers)
        yield replace(seen, worker=seen.worker % ranks * count + seen.worker // ranks) if ranks > 1 else seen


def replay_lines(cases: Iterable[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """What tests/clients/dynamo_workers.py prints of cases, in Dynamo's environment."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.jsonl"
        path.write_text("".join(json.dumps(case) + "\n" for case in cases))
        command = [PYTHON, ROOT / "tests/clients/dynamo_workers.py", path]
        return subprocess.run(command, capture_output=True, text=True, env=plain)


def in_order(
    trace: kvtrace.Trace,
    version: str,
    summary: dict[str, Any],
    requests: list[list[Any]],
    routed: np.ndarray | None = None,
) -> Replayed:
    """The requests in the trace's order; it names them only where they come one at a time.

    Elsewhere a request is known by arrival and lengths. Those that are alike in all three are told apart by their
    workers, which its log names in the order of the trace (`routed`) or which take turns, and by their admissions.
    """
    rows = np.array([request[0] for request in requests])
    if len(rows) and rows[0] < 0:
        alike = defaultdict(list)
        for row in range(len(trace)):
            alike[trace.timestamp[row], trace.input_length[row], trace.output_length[row]].append(row)
        turns = np.arange(len(trace)) % (1 + max(request[4] for request in requests))
        workers = turns if routed is None else routed
        for number, request in sorted(enumerate(requests), key=lambda item: item[1][6]):
            mine = alike[tuple(request[1:4])]
            rows[number] = min(mine, key=lambda row: (workers[row] != request[4], row))
            mine.remove(rows[number])
    columns = np.empty((len(trace), 8))
    columns[rows] = [request[4:] for request in requests]
    worker, reused, admit, first, end, *counts = columns.T
    whole = (column.astype(int) for column in counts)
    return Replayed(version, summary, worker.astype(int), reused.astype(int), admit, first, end, *whole)


def at_their_times(trace: kvtrace.Trace, seen: Replayed, capacity: int) -> tuple[np.ndarray, int]:
    """(hit blocks of each request, early frees) in our vLLM engine, at Dynamo's workers, admissions and ends."""
    hits, early = np.zeros(len(trace), dtype=np.int64), 0
    for worker in np.unique(seen.worker):
        rows = np.flatnonzero(seen.worker == worker)
        rows = rows[np.argsort(seen.admit[rows], kind="stable")]
        demand = replace(block_demand(trace[rows], "grow", recompute_last=True), arrival=seen.admit[rows])
        engine = build(Setting(capacity, engine="vllm", mode="grow"), demand)
        engine.schedule("open-loop", end=seen.end[rows])
        engine.advance(len(rows))
        hits[rows] = engine.hits
        early += engine.early_frees
        engine.close()
    return hits, early


def at_load(trace: kvtrace.Trace, load: float) -> kvtrace.Trace:
    """The trace with its arrivals so many times faster."""
    faster = replace_columns(trace, timestamp=trace.timestamp / load)
    return kvtrace.Trace.from_columns(faster, block_size=trace.block_size, tail=trace.tail)


def in_time(trace: kvtrace.Trace, capacity: int, router: str, seen: Replayed) -> tuple[np.ndarray, int]:
    """Our simulation with Dynamo's costs, and the requests with ties, which fall as in its run.

    Each row has worker, hit tokens, admission, first token and end in seconds, and preemptions.
    """
    name = {"round_robin": "round-robin", "kv_router": "dynamo"}[router]
    return served(trace, capacity, DynamoScheduler(), WORKERS, name, seen.worker)


def one_at_a_time(trace: kvtrace.Trace, path: str) -> None:
    """Print the first table."""
    print(f"\n{'blocks':>8}  {'its ratio':>10}  {'x tokens / block':>16}  {'ours':>8}  {'requests that differ':>20}")
    cases = [
        {"path": path, "engine": {"num_gpu_blocks": capacity, "max_num_seqs": 1}, "settings": {"replay_concurrency": 1}}
        for capacity in CAPACITIES
    ]
    for capacity, seen in zip(CAPACITIES, replay(trace, cases), strict=True):
        ours = simulate(trace, capacity, engine="vllm", mode="grow").hit_blocks
        ratio = seen.summary["prefix_cache_reused_ratio"]
        blocks = ratio * trace.input_length.sum() / trace.block_size
        differ = int((ours != seen.hit_blocks(trace.block_size)).sum())
        print(f"{capacity:8,}  {ratio:10.7f}  {blocks:16,.2f}  {ours.sum():8,}  {differ:20,}")


def four_workers(trace: kvtrace.Trace, path: str, runs: int) -> None:
    """Print the second table: Dynamo's runs, then ours."""
    settings = [{"num_workers": WORKERS, "router_mode": mode} for mode in ("round_robin", *["kv_router"] * runs)]
    cases = [{"path": path, "engine": {"num_gpu_blocks": CAPACITY}, "settings": setting} for setting in settings]
    print(
        f"\n{'':24}{'ratio':>7}{'hit blocks':>12}{'TTFT mean':>11}{'p50':>7}{'p99':>7}{'ITL mean':>10}{'p99':>7}"
        f"{'out tok/s':>11}{'e2e mean':>10}{'at its times':>14}{'differ':>8}{'least cost':>12}{'ties':>6}"
    )
    for setting, seen in zip(settings, replay(trace, cases), strict=True):
        said, theirs = seen.summary, seen.hit_blocks(trace.block_size)
        ours, _ = at_their_times(trace, seen, CAPACITY)
        print(f"{'Dynamo ' + setting['router_mode']:24}{said['prefix_cache_reused_ratio']:7.4f}{theirs.sum():12,}"
              f"{said['mean_ttft_ms']:11.1f}{said['median_ttft_ms']:7.1f}{said['p99_ttft_ms']:7.0f}"
              f"{said['mean_itl_ms']:10.2f}{said['p99_itl_ms']:7.2f}{said['output_throughput_tok_s']:11,.1f}"
              f"{said['mean_e2e_latency_ms']:10,.0f}{ours.sum():14,}{(ours != theirs).sum():8,}", end="")  # fmt: skip
        if setting["router_mode"] == "kv_router":
            fits, ties, _ = decisions(trace, seen, CAPACITY, WORKERS)
            print(f"{fits:12,}{ties:6,}")
        else:
            print(f"   turns: {bool((seen.worker == np.arange(len(trace)) % WORKERS).all())}")
    for router in ("round-robin", "kv-aware"):
        for schedule in SCHEDULES:
            setting = Setting(CAPACITY, engine="vllm", mode="grow")
            done = simulate_instances(trace, WORKERS, router, setting=setting, schedule=schedule)
            ratio = done.hit_blocks.sum() * trace.block_size / trace.input_length.sum()
            print(
                f"{f'{router} {schedule}':24}{ratio:7.4f}{done.hit_blocks.sum():12,}   imbalance {done.imbalance:.3f}"
            )


def times(trace: kvtrace.Trace, path: str, runs: int) -> None:
    """Print the table of our simulation in time: beside each of Dynamo's runs, then with seeds of our own."""
    columns = ("load", "blocks", "router", "hits", "preempted", "TTFT ms", "ours", "error %", "differ", "ties")
    print("\n" + "".join(f"{name:>13}" for name in columns))
    for load, capacity in product(LOADS, (1_000, CAPACITY)):
        faster, setting = at_load(trace, load), Setting(capacity, engine="dynamo")
        routers = ["round_robin", *["kv_router"] * runs]
        cases = [
            {"path": path, "engine": {"num_gpu_blocks": capacity},
             "settings": {"num_workers": WORKERS, "router_mode": router, "arrival_speedup_ratio": float(load)}}
            for router in routers
        ]  # fmt: skip
        for router, seen in zip(routers, replay(faster, cases), strict=True):
            ours, ties = in_time(faster, capacity, router, seen)
            mean, said = float((ours[:, 3] * 1000 - faster.timestamp).mean()), seen.summary["mean_ttft_ms"]
            theirs = np.array([seen.worker, seen.first_reused, seen.admit, seen.first, seen.end, seen.readmitted]).T
            differ = np.abs(ours * SCALE - theirs).max(axis=1) > 1e-3
            print(f"{load:13}{capacity:13,}{router:>13}{seen.first_reused.sum() // trace.block_size:13,}"
                  f"{seen.readmitted.sum():13,}{said:13,.3f}{mean:13,.3f}{100 * (mean / said - 1):13.6f}"
                  f"{differ.sum():13,}{ties:13,}")  # fmt: skip
        for seed in SEEDS:
            run = open_loop(faster, DynamoCost(), setting=setting, instances=WORKERS, router="dynamo", router_seed=seed)
            hits = run.cached_tokens.sum() // trace.block_size
            print(f"{load:13}{capacity:13,}{f'seed {seed}':>13}{hits:13,}{run.preemptions.sum():13,}"
                  f"{'':13}{1000 * run.ttft_s.mean():13,.3f}")  # fmt: skip


def rules(trace: kvtrace.Trace) -> None:
    """Print the third table: `kv-aware` made Dynamo's router, a rule at a time."""
    print(f"\nrules of Dynamo's router, open-loop:{MS_PER_TOKEN}")
    ours = Rules(waiting=False, shared=False, bunched=False, whole=False, drawn=False)
    table = {
        "none: kv-aware": ours,
        "waiting prefills": replace(ours, waiting=True),
        "shared prompt blocks": replace(ours, shared=True),
        "bunched arrivals": replace(ours, bunched=True),
        "last block may hit": replace(ours, whole=True),
        "drawn ties": replace(ours, drawn=True),
        "all but drawn ties": Rules(drawn=False),
    } | {f"all, seed {seed}": Rules() for seed in SEEDS}
    for number, (name, given) in enumerate(table.items()):
        print(f"{name:24}{routed(trace, CAPACITY, WORKERS, MS_PER_TOKEN, given, seed=number):10,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="in blocks of 512, from time 0, rows without sessions")
    parser.add_argument("--runs", type=int, default=5, help="of the KV router, whose ties are drawn")
    options = parser.parse_args()
    if not PYTHON.exists():
        parser.error(
            "no environment dynamo in KVTRACE_CLIENTS. Try `python -m venv dynamo`, `pip install ai-dynamo-runtime`."
        )
    trace = kvtrace.read(options.trace)
    one_at_a_time(trace, options.trace)
    four_workers(trace, options.trace, options.runs)
    times(trace, options.trace, options.runs)
    rules(trace)


if __name__ == "__main__":
    main()
