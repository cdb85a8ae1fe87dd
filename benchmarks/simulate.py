"""Simulations of Mooncake's conversation trace: a block of engines and orders, and what `explain` adds."""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kvtrace
from kvtrace.cache import Tier
from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import ENGINES
from kvtrace.cache.simulation import Setting

from .inputs import conversations
from .measuring import Line, apart, look_up, python_step

CAPACITY = 10_000  # blocks
ORDERS = ["fifo", "mru", "lfu", "lfu-da", "slru", "sieve", "s3fifo", "arc", "pgdsf", "belady"]  # need no column
HYBRIDS = ("gpt-oss-120b", "gemma-3-27b", "qwen3-next-80b-a3b")  # two groups, seven and four
TURNS = 200_000  # requests of the conversations that reuse-density evicts from
RATES = kvtrace.serving.StepCost(token_s=7.1e-5, step_s=0.013)
EXPLAINED: dict[str, dict[str, Any]] = {
    "LRU": {},
    "vLLM's cache": {"engine": "vllm"},
    "SGLang's cache": {"engine": "sglang"},
    "four instances": {"instances": 4, "router": "sticky"},
    "two tiers": {"tiers": {"hbm": CAPACITY, "dram": 4 * CAPACITY}},
    "vLLM's steps": {"engine": "vllm", "cost": RATES},
}


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


def lines(folder: str, share: float) -> Iterator[Line]:
    """Seconds a block beside the reference loops, groups of layers beside full attention, `explain` beside itself."""
    python = (simulation, {"policy": f"{__name__}:Ordered"})
    yield Line("LRU as a Python class, a block / Python step", "ns", python, (python_step,), 12)
    yield Line("vLLM's cache, a block / look-up", "ns", (simulation, {"engine": "vllm"}), (look_up,), 6)
    yield Line("the curve of all capacities, a block / look-up", "ns", (curve,), (look_up,), 4)
    for policy, pool, most in (
        ("lru", "flat", None),
        ("reuse-density", "flat", 30),
        ("reuse-density", "leaf-first", 30),
    ):
        ours = (dense, round(TURNS * share), policy, pool)
        yield Line(f"{policy}, {pool}, a block / look-up", "ns", ours, (look_up,), most)
    whole = (hybrid, None)
    for model in HYBRIDS:
        yield Line(f"vLLM's cache groups of {model} / full attention", "ns", (hybrid, model), whole, 4)
    for name in EXPLAINED:
        yield Line(f"explain {name} / simulate", "ms", (explained, name), (simulated, name), 3)
    alone = (behind_router, round(5 * TURNS * share), False)
    yield Line("eight instances and a pool / without one", "s", (behind_router, alone[1], True), alone, 1.6)
    options = [{"engine": engine} for engine in ENGINES] + [{"policy": policy} for policy in ORDERS]
    for option, seconds in zip(options, apart(each, options), strict=True):
        yield Line(f"{' '.join(*option.items())}, a block", "ns", seconds)


def each(options: list[dict[str, str]]) -> list[float]:
    """Seconds a block of several simulations."""
    return [simulation(option) for option in options]


def simulation(options: dict[str, str]) -> float:
    """Seconds a block of a simulation, from a trace in memory to its hits."""
    return _seconds(lambda trace: kvtrace.cache.simulate(trace, CAPACITY, **options)) / len(conversations().hash_ids)


def hybrid(model: str | None) -> float:
    """Seconds a block in the cache groups of a model, with the memory of CAPACITY blocks of all its layers."""
    layout = kvtrace.serving.cache_layout(model, block_size=512) if model else None
    blocks = CAPACITY if layout is None else int(CAPACITY * 512 / layout.tokens_per_block)
    options: dict[str, Any] = {"engine": "vllm", "mode": "token", "layout": layout}
    return _seconds(lambda trace: kvtrace.cache.simulate(trace, blocks, **options)) / len(conversations().hash_ids)


def curve() -> float:
    """Seconds a block of the hit curve."""
    return _seconds(lambda trace: kvtrace.analysis.hit_curve(trace).to_dict()) / len(conversations().hash_ids)


def explained(name: str) -> float:
    """Seconds to simulate a setting and to explain it."""
    capacity = None if "tiers" in EXPLAINED[name] else CAPACITY
    return _seconds(lambda trace: kvtrace.serving.explain(trace, capacity, **EXPLAINED[name]))


def simulated(name: str) -> float:
    """Seconds to simulate a setting."""
    options = dict(EXPLAINED[name])
    setting = Setting(CAPACITY, engine=options.pop("engine", "reference"))
    if "cost" in options:
        return _seconds(lambda trace: kvtrace.serving.open_loop(trace, setting=setting, **options))
    if "instances" in options:
        return _seconds(lambda trace: kvtrace.serving.simulate_instances(trace, setting=setting, **options))
    if "tiers" in options:
        return _seconds(lambda trace: kvtrace.cache.simulate_tiers(trace, **options))
    return _seconds(lambda trace: kvtrace.cache.simulate(trace, CAPACITY, engine=setting.engine))


def _seconds(run: Callable[[kvtrace.Trace], object]) -> float:
    """Processor seconds of run(trace), the median of three traces after a first one: a trace remembers its forest."""
    taken = []
    for _ in range(4):
        trace = conversations()
        start = time.process_time()
        run(trace)
        taken.append(time.process_time() - start)
    return statistics.median(taken[1:])


def dense(requests: int, policy: str, pool: str) -> float:
    """Processor seconds a block at a tenth of the working set of conversations that are made up."""
    trace = turns(requests)
    options: dict[str, Any] = {"pool": pool} if pool != "flat" else {}
    kvtrace.cache.simulate(trace[:100], 100, policy, **options)  # imports
    start = time.process_time()
    kvtrace.cache.simulate(trace, trace.working_set // 10, policy, **options)
    return (time.process_time() - start) / len(trace.hash_ids)


def behind_router(requests: int, pool: bool) -> float:
    """Processor seconds of eight instances on conversations that are made up, alone or with a pool for a quarter."""
    trace = turns(requests)
    first, demand = trace.working_set // 80, block_demand(trace, "block")
    tiers = [Tier("hbm", first), Tier("pool", trace.working_set // 4, scope="cluster")] if pool else []
    taken = []
    for _ in range(3):  # the first one also maps the memory
        start = time.process_time()
        kvtrace.serving.simulate_instances(trace, 8, setting=Setting(first), tiers=tiers, demand=demand)
        taken.append(time.process_time() - start)
    return min(taken)


def turns(requests: int, seed: int = 0) -> kvtrace.Trace:
    """Conversations of 1 to 8 turns; a turn adds 1 to 15 blocks, and the next one comes a minute later on average."""
    rng = np.random.default_rng(seed)
    turns = np.minimum(rng.geometric(0.5, requests), 8)
    turns = turns[: np.searchsorted(np.cumsum(turns), requests) + 1]
    conversation = np.repeat(np.arange(len(turns)), turns)
    first = np.cumsum(turns) - turns
    new = rng.integers(1, 16, len(conversation))
    total = np.cumsum(new)
    start = np.repeat(total[first] - new[first], turns)  # the first block of the conversation
    length = total - start
    began = np.sort(rng.uniform(0, 100.0 * len(turns), len(turns)))
    waits = rng.exponential(60_000, len(conversation))
    elapsed = np.cumsum(waits) - np.repeat(np.cumsum(waits)[first], turns)
    order = np.argsort(began[conversation] + elapsed, kind="stable")
    ids = np.concatenate([np.arange(start[row], start[row] + length[row]) for row in order.tolist()])
    columns = kvtrace.trace.Columns(
        timestamp=(began[conversation] + elapsed)[order], input_length=16 * length[order],
        output_length=np.full(len(order), 100), hash_ids=ids, offsets=np.append(0, np.cumsum(length[order])),
    )  # fmt: skip
    return kvtrace.Trace.from_columns(columns, block_size=16)
