"""The commands of other tools beside ours, on the same trace: seconds and what each of them answers.

python -m benchmarks.rivals TRACE RIVALS [COPIES]

TRACE is Mooncake's conversation trace, RIVALS an environment with `pip install aiperf llmtrafficlens kvcache-simulator
libcachesim`. A tool that it lacks is left out. COPIES repeats the trace, each copy with ids and hours of its own. Each
command runs five times in turn with the others; the table has medians, of the whole command from a cold start.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson

ROUNDS = 5
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


def commands(trace: str, rivals: Path, folder: str) -> dict[str, list[str]]:
    """Name -> command, ours and those of the rivals that are installed."""
    kvtrace, there = [sys.executable, "-m", "kvtrace"], rivals / "bin"
    csv = f"{folder}/blocks.csv"
    budgets = ",".join(str(int(one) * 0.625) for one in CAPACITIES.split(","))  # Command R: 640 MiB a block
    every = {
        "kvtrace analyze": [*kvtrace, "analyze", trace],
        "AIPerf analyze-trace": [f"{there}/aiperf", "analyze-trace", "--input-file", trace, "--block-size", "512"],
        "kvtrace curve (all capacities)": [*kvtrace, "curve", trace],
        "llmtrafficlens profile (6 capacities)": [
            f"{there}/llmtrafficlens", "profile", trace, "--format", "mooncake", "-o", f"{folder}/lens",
        ],
        "kvcache-simulator run (5 capacities, C++)": [
            f"{there}/kvcache-simulator", "run", "--trace", trace, "--model", "cohere-command-r-v01", "--block-size",
            "512", "--policies", "lru", "--budgets-gib", budgets, "--no-progress",
        ],
        "libCacheSim LRU (5 capacities, C++)": [f"{there}/python", "-c", LIBCACHESIM, csv, CAPACITIES],
        "kvtrace simulate (vLLM's cache, 5 capacities)": [
            *kvtrace, "simulate", trace, "--engine", "vllm", "--capacity", CAPACITIES,
        ],
    }  # fmt: skip
    subprocess.run([*kvtrace, "convert", trace, "-o", csv, "--to", "libcachesim", "-q"], check=True)
    return {name: command for name, command in every.items() if os.access(command[0], os.X_OK)}


def repeated(source: str, folder: str, copies: int) -> str:
    """The trace so many times, each copy an hour after the last and with ids of its own."""
    rows = [orjson.loads(line) for line in Path(source).read_bytes().splitlines()]
    first = 1 + max(max(row["hash_ids"]) for row in rows)
    path = Path(folder, f"{copies} copies.jsonl")
    with path.open("wb") as file:
        for copy in range(copies):
            for row in rows:
                ids = [block + copy * first for block in row["hash_ids"]]
                moved = row | {"timestamp": row["timestamp"] + copy * 3_600_000, "hash_ids": ids}
                file.write(orjson.dumps(moved) + b"\n")
    return str(path)


def seconds(command: list[str], folder: str) -> tuple[float, float]:
    """Wall and processor seconds of a command; CalledProcessError with its output if it fails."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("rivals", type=Path)
    parser.add_argument("copies", type=int, nargs="?", default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.abspath(options.trace)
        if options.copies > 1:
            trace = repeated(trace, folder, options.copies)
        todo = commands(trace, options.rivals.absolute(), folder)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in todo}
        for _ in range(ROUNDS):
            for name, command in todo.items():
                taken[name].append(seconds(command, folder))
    print(f"| {'command':46} | wall s | CPU s |\n|---|---|---|")
    for name, times in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {name:46} | {wall:6.2f} | {cpu:5.2f} |")


if __name__ == "__main__":
    main()
