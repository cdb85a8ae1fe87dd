"""All that we claim about speed and memory, measured beside the rivals: one table.

python -m benchmarks               everything (a quarter of an hour, 4 GB of temporary files)
python -m benchmarks --stages      what each stage of anonymising takes, on one core
python -m benchmarks --quick       a tenth of the data, one round: does it run?
"""

from __future__ import annotations

import argparse
import os
import tempfile

from . import (
    analyze,
    anonymize,
    curve,
    explain,
    large_trace,
    memory,
    policies,
    prefix_cache,
    reading,
    reuse_density,
    serving,
    simulate,
)
from . import million as million_requests
from . import sessions as agent_sessions
from . import synthesize as synthesis
from .apart import apart, wait_for_quiet
from .raw_logs import AGENT, CHATS, large
from .table import show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    part, rounds = (0.1, 1) if options.quick else (1, options.rounds)
    load = wait_for_quiet(0 if options.quick else 60)
    real = "real logs" if AGENT.exists() and CHATS.exists() else "logs made up"
    print(f"{real}; {len(os.sched_getaffinity(0))} cores, load {load:.1f} before; medians of {rounds}")
    with tempfile.TemporaryDirectory() as folder:
        if options.stages:
            show_stages(folder, 110 * part)
            return
        found = anonymize.claims(folder, 110 * part, rounds)
        found += reading.claims(folder, 300 * part, rounds)
        found += agent_sessions.claims(folder, rounds)
        found += curve.claims(folder, max(1, round(105 * part)), rounds)
        found += memory.claims(folder, 110 * part)
        found += analyze.claims(folder, 400 * part, rounds)
        found += simulate.claims(rounds) + prefix_cache.claims(rounds)
        found += explain.claims(rounds)
        found += synthesis.claims(folder, round(synthesis.ROWS * part), rounds)
        found += serving.claims(rounds)
        found += large_trace.claims(folder)
        found += million_requests.claims(folder, max(1, round(million_requests.COPIES * part)), rounds)
        found += reuse_density.claims(round(reuse_density.REQUESTS * part), rounds)
        found += policies.claims(folder, round(policies.REQUESTS * part), rounds)
    show(found)


def show_stages(folder: str, megabytes: float) -> None:
    """Print seconds and megabytes of log a second for each stage."""
    log = large(folder, megabytes)
    size = os.path.getsize(log) / 1e6
    for name, seconds in apart(anonymize.stages, log).items():
        print(f"{name:10}{seconds:8.2f} s{size / seconds:10,.0f} MB/s")


if __name__ == "__main__":
    main()
