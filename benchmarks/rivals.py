"""The commands of other tools beside ours on the conversation trace, from a cold start."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import kvtrace
from kvtrace.formats.converting import convert_file

from .inputs import BLOCK, conversations
from .measuring import Line, client, spent

CAPACITIES = "1000,3000,10000,30000,100000"  # blocks of 512 tokens
LIBCACHESIM = """
import sys, libcachesim as lcs
options = lcs.ReaderInitParam(has_header=True, has_header_set=True, delimiter=",", obj_id_is_num=True,
                              obj_id_is_num_set=True)
options.time_field, options.obj_id_field, options.obj_size_field = 1, 2, 3
reader = lcs.TraceReader(sys.argv[1], lcs.TraceType.CSV_TRACE, options)
for capacity in map(int, sys.argv[2].split(",")):
    reader.reset()
    misses, _ = lcs.LRU(cache_size=capacity).process_trace(reader)
    print(capacity, 1 - misses)
"""

LMCACHE = """
import sys
from pathlib import Path
from lmcache.tools.cache_simulator.simulator import compute_kv_bytes_per_chunk, load_lookup_events, simulate
events = load_lookup_events([Path(sys.argv[1])])
size = compute_kv_bytes_per_chunk(events[0])
for capacity in map(int, sys.argv[2].split(",")):
    print(capacity, simulate(events, capacity * size, size, fast=True)["token_hit_rate"])
"""


def lines(folder: str, share: float) -> Iterator[Line]:
    """Seconds of our command and of theirs; what lacks is not measured."""
    trace, csv, lookups = f"{folder}/trace.jsonl", f"{folder}/blocks.csv", f"{folder}/lookups.jsonl"
    kvtrace.write(conversations(), trace, block_size=BLOCK)
    convert_file(trace, csv, to="libcachesim", block_size=BLOCK)
    convert_file(trace, lookups, to="lmcache", block_size=BLOCK)
    ours = [sys.executable, "-m", "kvtrace"]
    analyze, curve = [*ours, "analyze", trace], [*ours, "curve", trace]
    simulate = [*ours, "simulate", trace, "--engine", "vllm", "--capacity", CAPACITIES]
    budgets = ",".join(str(int(one) * 0.625) for one in CAPACITIES.split(","))  # Command R: 640 MiB a block
    aiperf = ["aiperf", "analyze-trace", "--input-file", trace, "--block-size", "512"]
    lens = ["llmtrafficlens", "profile", trace, "--format", "mooncake", "-o", f"{folder}/lens"]
    simulator = [
        "kvcache-simulator", "run", "--trace", trace, "--model", "cohere-command-r-v01", "--block-size", "512",
        "--policies", "lru", "--budgets-gib", budgets, "--no-progress",
    ]  # fmt: skip
    libcachesim = ["python", "-c", LIBCACHESIM, csv, CAPACITIES]
    lmcache = ["python", "-c", LMCACHE, lookups, CAPACITIES]
    for name, command, environment, (program, *options) in (
        ("analyze / AIPerf analyze-trace", analyze, "rivals", aiperf),
        ("curve, all capacities / llmtrafficlens profile, 6", curve, "rivals", lens),
        ("curve, all capacities / libCacheSim LRU, 5", curve, "rivals", libcachesim),
        ("curve, all capacities / LMCache's simulator, 5", curve, "lmcache", lmcache),
        ("curve, all capacities / kvcache-simulator, 5", curve, "rivals", simulator),
        ("simulate vLLM's cache, 5 capacities / kvcache-simulator", simulate, "rivals", simulator),
    ):
        programs, needs = client(environment)
        rival = (seconds, folder, f"{programs}/{program}", *options)
        yield Line(name, "s", (seconds, folder, *command), rival, 1, needs)


def seconds(folder: str, *command: str) -> float:
    """Seconds of a command, from start to exit."""
    return spent(*command, folder=folder).wall_s
