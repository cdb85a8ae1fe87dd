"""A trace over many instances of a serving engine, each with a cache of its own, behind a router.

What one instance has cached the others have not, so a router decides what can hit. docs/serving/instances.md says what
each router does, and what pure overlap does where all prompts begin with the same block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from .._base.errors import UsageError
from ..cache.demand import Jobs, jobs
from ..cache.simulation import CHUNK, Setting, Simulation, SimulationDict, build
from ..trace.hits import count_hits
from ..trace.trace import Trace
from .core import router as routers

ROUTERS = {
    "round-robin": "in turns",
    "sticky": "by session, or by the second block of the prompt, where no sessions are known",
    "overlap": "to the instance where most blocks hit; of equal ones to the first",
    "least-loaded": "to the instance with the fewest live tokens; of equal ones to the one sent fewest requests",
    "kv-aware": "least blocks to compute and live blocks together, as Dynamo's router does with a weight of 1",
    "lmetric": "least tokens to compute x (live requests + 1): LMetric (arXiv 2603.15202)",
}


class InstanceLoad(TypedDict):
    """What one instance served."""

    instance: int
    requests: int
    blocks: int
    tokens: int
    hit_blocks: int
    block_hit_rate: float


class FleetDict(SimulationDict):
    """What `FleetSimulation.to_dict` returns; docs/serving/instances.md explains the keys."""

    router: str
    instances: int
    imbalance: float
    loads: list[InstanceLoad]


@dataclass(frozen=True, eq=False)
class FleetSimulation(Simulation):
    """What the caches of many instances did with a trace."""

    router: str = "round-robin"
    instance: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # request -> the instance it went to
    instances: int = 1

    @property
    def loads(self) -> list[InstanceLoad]:
        """Each instance's requests, blocks and tokens of prompts, and its hit blocks, after the warm-up."""
        found: list[InstanceLoad] = []
        for number in range(self.instances):
            rows = np.flatnonzero(self.instance == number)
            hits = count_hits(self.trace, self.hit_blocks, rows[rows >= self.warm_up])
            found.append({"instance": number, "requests": hits.requests, "blocks": hits.blocks, "tokens": hits.tokens,
                          "hit_blocks": hits.hit_blocks, "block_hit_rate": hits.block_hit_rate})  # fmt: skip
        return found

    @property
    def imbalance(self) -> float:
        """Tokens of the busiest instance / their mean: 1 where all have the same, the number of instances at worst."""
        tokens = [load["tokens"] for load in self.loads]
        return max(tokens) * len(tokens) / sum(tokens) if sum(tokens) else 1.0

    def to_dict(self) -> FleetDict:
        """Keys as docs/serving/instances.md lists them: those of a simulation, and the router's."""
        return {
            **super().to_dict(), "router": self.router, "instances": self.instances, "imbalance": self.imbalance,
            "loads": self.loads,
        }  # fmt: skip


def simulate_instances(
    trace: Trace,
    instances: int,
    router: str = "round-robin",
    *,
    setting: Setting,
    asked: Jobs | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> FleetSimulation:
    """Run a trace over several instances behind a router, each with a cache of its own, and count the hits.

    Args:
        trace: The trace.
        instances: The number of instances.
        router: A router of docs/serving/instances.md.
        setting: The cache of each instance.
        asked: What each request demands of the cache, where that is known already.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The hit blocks and the instance of each request, and the load of each instance.

    Raises:
        UsageError: The router is unknown, or the schedule is not c1 or timed.

    >>> from kvtrace.trace.building import toy
    >>> done = simulate_instances(toy("0 1", "0 1", "0 1"), 2, setting=Setting(2))
    >>> done.hit_blocks.tolist(), done.instance.tolist(), round(done.imbalance, 2)
    ([0, 0, 2], [0, 1, 0], 1.33)
    """
    from .core.fleet import Fleet

    routers.check(router)
    if instances < 1:
        raise UsageError(f"{instances} instances serve nobody. Try 1 or more.")
    if setting.schedule.kind == "window" or setting.bound:
        raise UsageError("instances are served one request at a time or timed, by an order that an engine can have.")
    asked = asked or jobs(trace, *setting.asks)
    engines = [build(setting, asked) for _ in range(instances)]
    run = Fleet(engines, routed(trace, router, engines), trace.input_length + trace.output_length)
    while run.done < len(asked):
        before = run.done
        run.advance(CHUNK)
        if on_progress:
            on_progress(run.done - before)
    hit_blocks = sum(engine.hits.astype(np.int64) for engine in engines)
    run.close()
    return FleetSimulation(
        setting, trace, hit_blocks, sum(engine.evictions for engine in engines),
        sum(engine.early_frees for engine in engines), 0, router, run.instances, instances,
    )  # fmt: skip


def routed(trace: Trace, router: str, engines: list):
    """The router of that name over a trace and the engines that it may ask."""
    return routers.Router(engines, router, _keys(trace), trace.input_length, trace.block_size)


def _keys(trace: Trace) -> np.ndarray:
    """What a sticky router goes by: a hash of the session, else of the second block (the only one where there is one).

    The hash is SHA-256 of the number's digits, of which the last 32 bits are taken: the same everywhere.
    """
    blocks = trace.prompt_blocks
    key = np.arange(len(trace), dtype=np.int64)
    place = trace.offsets[:-1] + np.minimum(1, blocks - 1)
    key[blocks > 0] = trace.hash_ids[place[blocks > 0]]
    if trace.session is not None:
        key = np.where(trace.session >= 0, trace.session, key)
    distinct, number = np.unique(key, return_inverse=True)
    return np.array([_hashed(value) for value in distinct.tolist()], dtype=np.int64)[number]


def _hashed(value: int) -> int:
    return int.from_bytes(hashlib.sha256(str(value).encode()).digest()[-4:], "big")
