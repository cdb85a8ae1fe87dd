"""What `explain` costs beside the simulation that it explains: a cache, four instances, tiers, and steps in time.

Run alone: python -m benchmarks.explain [rounds].
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import kvtrace
from kvtrace.cache.simulation import Setting

from .apart import medians
from .simulate import CAPACITY, conversations
from .table import Claim, show

RATES = kvtrace.StepCost(token_s=7.1e-5, step_s=0.013)
WANTED = 3  # times the simulation
SETTINGS = {
    "LRU": {},
    "vLLM's cache": {"engine": "vllm"},
    "SGLang's cache": {"engine": "sglang"},
    "four instances": {"instances": 4, "router": "sticky"},
    "two tiers": {"tiers": {"hbm": CAPACITY, "dram": 4 * CAPACITY}},
    "vLLM's steps": {"engine": "vllm", "cost": RATES},
}


def claims(rounds: int) -> list[Claim]:
    """Milliseconds of the explanation beside those of the simulation alone, for each setting."""
    contenders = {}
    for name in SETTINGS:
        contenders |= {f"explain {name}": (explained, name), name: (simulated, name)}
    taken = medians(contenders, rounds)
    return [
        Claim(f"explain {name} / simulate", taken[f"explain {name}"], taken[name], "ms", WANTED) for name in SETTINGS
    ]


def explained(name: str) -> float:
    """Milliseconds to simulate a setting and to explain it."""
    capacity = None if "tiers" in SETTINGS[name] else CAPACITY
    return _milliseconds(lambda trace: kvtrace.explain(trace, capacity, **SETTINGS[name]))


def simulated(name: str) -> float:
    """Milliseconds to simulate a setting."""
    options = dict(SETTINGS[name])
    setting = Setting(CAPACITY, engine=options.pop("engine", "reference"))
    if "cost" in options:
        return _milliseconds(lambda trace: kvtrace.simulate_serving(trace, setting=setting, **options))
    if "instances" in options:
        return _milliseconds(lambda trace: kvtrace.simulate_instances(trace, setting=setting, **options))
    if "tiers" in options:
        return _milliseconds(lambda trace: kvtrace.simulate_tiers(trace, **options))
    return _milliseconds(lambda trace: kvtrace.simulate(trace, CAPACITY, engine=setting.engine))


def _milliseconds(run: Callable[[kvtrace.Trace], object]) -> float:
    """Milliseconds of run(trace), the median of five traces after a first one: a trace remembers its forest."""
    taken = []
    for _ in range(6):
        trace = conversations()
        start = time.perf_counter()
        run(trace)
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken[1:])


if __name__ == "__main__":
    show(claims(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
