"""The founding experiments with their defaults: their tables, and the figures of docs/experiments.md.

python -m benchmarks.experiments FOLDER            all (about five minutes); figures and JSON go to the folder
python -m benchmarks.experiments FOLDER --quick    few requests and repeats: does it run?
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments import figures, tables
from experiments.eviction import eviction
from experiments.hit_rate import hit_rate
from experiments.identical import identical_prompt
from experiments.latency import latency
from experiments.prompts import Mix
from experiments.throughput import small_mix, throughput

from .apart import wait_for_quiet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    load = wait_for_quiet(0 if options.quick else 60)
    console = Console(width=140)
    console.print(f"{len(os.sched_getaffinity(0))} cores, load {load:.1f} before")
    for name, run in experiments(options.quick).items():
        start = time.perf_counter()
        found = run()
        for table in getattr(tables, name)(found):
            console.print(table, "")
        for line in tables.notes(found):
            console.print(line)
        console.print(f"{name}: {time.perf_counter() - start:.0f} s", "")
        stem = "experiments-" + name.replace("_", "-")
        figures.write_figure(getattr(figures, name)(found), options.folder / f"{stem}.png")
        (options.folder / f"{stem}.json").write_text(json.dumps(found.to_dict()))


def experiments(quick: bool) -> dict[str, Callable[[], Any]]:
    """Each experiment, under the name that its tables and its figure have."""
    if not quick:
        return {
            "hit_rates": hit_rate, "identical": identical_prompt, "eviction": eviction, "throughput": throughput,
            "latency": latency,
        }  # fmt: skip
    few, fewer = Mix(requests=100), replace(small_mix(), requests=8)
    return {
        "hit_rates": lambda: hit_rate(mix=few, seeds=2),
        "identical": lambda: identical_prompt(requests=100, seeds=2),
        "eviction": lambda: eviction(mix=few, seeds=2),
        "throughput": lambda: throughput([0.1, 1.0], [15, 64], at_lengths=[15], mix=fewer, repeats=2),
        "latency": lambda: latency(requests=8, repeats=2),
    }


if __name__ == "__main__":
    main()
