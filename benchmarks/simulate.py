"""Simulation of Mooncake's conversation trace: nanoseconds a block for engines, orders, and an order in Python.

Where the trace is missing, one of its size is made up. Run alone, it prints what each order and engine takes too.
"""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

import kvtrace
from kvtrace.cache.engines import ENGINES

from .apart import apart, medians
from .curve import CONVERSATIONS, REFERENCES
from .read_write import synthetic
from .table import Claim, show

CAPACITY = 10_000  # blocks
ORDERS = ["lru", "fifo", "mru", "lfu", "lfu-da", "slru", "sieve", "s3fifo", "arc", "pgdsf", "belady"]  # need no column
IN_PYTHON = "benchmarks.simulate:Ordered"
HYBRIDS = ("gpt-oss-120b", "gemma-3-27b", "qwen3-next-80b-a3b")  # two groups, seven and four
PROMISED = {  # ns a block: 1 M, 10 M and 20 M blocks a second
    "LRU as a Python class": 1_000, "vLLM's cache": 100, "the curve of all capacities": 50,
}  # fmt: skip


class Ordered:
    """LRU as a user writes it: an ordered dictionary of what may go."""

    def __init__(self, context):
        self.order: OrderedDict[int, None] = OrderedDict()

    def insert(self, block):
        """Nothing: what is pinned is in no order."""

    def use(self, block):
        """Out of the order, if it is there."""
        self.order.pop(block, None)

    def release(self, block):
        """To the end."""
        self.order[block] = None

    def victim(self):
        """The first."""
        return next(iter(self.order), None)

    def remove(self, block):
        """Out of the order."""
        del self.order[block]


def claims(rounds: int) -> list[Claim]:
    """Nanoseconds a block beside what was promised: an order in Python, vLLM's cache, the curve of all capacities."""
    contenders = {
        "LRU as a Python class": (simulation, {"policy": IN_PYTHON}),
        "vLLM's cache": (simulation, {"engine": "vllm"}),
        "the curve of all capacities": (curve,),
    }
    groups = {f"vLLM's cache groups of {model}": (hybrid, model) for model in HYBRIDS}
    taken = medians(contenders | {"vLLM's cache, token": (hybrid, None)} | groups, rounds)
    return [
        *(Claim(f"{name} / promised", taken[name], PROMISED[name], "ns/block", 1) for name in contenders),
        *(
            Claim(f"{name} / full attention", taken[name], taken["vLLM's cache, token"], "ns/block", 3)
            for name in groups
        ),
    ]


def simulation(options: dict[str, str]) -> float:
    """ns a block of a simulation, from a trace in memory to its hits."""
    return _each_block(lambda trace: kvtrace.simulate(trace, CAPACITY, **options))


def hybrid(model: str | None) -> float:
    """ns a block of the trace in the cache groups of a model, with the memory of CAPACITY blocks of all its layers."""
    layout = kvtrace.cache_layout(model, block_size=512) if model else None
    blocks = CAPACITY if layout is None else int(CAPACITY * 512 / layout.tokens_per_block)
    return _each_block(lambda trace: kvtrace.simulate(trace, blocks, engine="vllm", mode="token", layout=layout))


def curve() -> float:
    """ns a block of the hit curve."""
    return _each_block(lambda trace: kvtrace.hit_curve(trace).to_dict())


def conversations():
    if CONVERSATIONS.exists():
        return kvtrace.read(CONVERSATIONS)
    return kvtrace.Trace.from_columns(synthetic(REFERENCES // 24, np.random.default_rng(7)), block_size=512)


def _each_block(run: Callable) -> float:
    """ns a block of run(trace), the median of five traces: a trace remembers some of what was asked."""
    taken = []
    for _ in range(5):
        trace = conversations()
        start = time.perf_counter()
        run(trace)
        taken.append(1e9 * (time.perf_counter() - start) / len(trace.hash_ids))
    return statistics.median(taken)


def figures() -> None:
    """Print nanoseconds a block of each engine under LRU, and of the reference one under each order."""
    for engine in ENGINES:
        print(f"{engine:24}{apart(simulation, {'engine': engine}):8.1f} ns/block")
    for policy in [*ORDERS, IN_PYTHON]:
        print(f"{policy:24}{apart(simulation, {'policy': policy}):8.1f} ns/block")


if __name__ == "__main__":
    figures()
    show(claims(3))
