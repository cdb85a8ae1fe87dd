"""A cache in tiers, as in `hbm=5000,dram=50000`: which tier each hit block came from.

Exclusive: a block is in one tier; what the first evicts goes to the next, and what is wanted comes back to the first.
Inclusive: each tier is written through and sees every use, so it is a cache of its own; a hit belongs to the first
tier that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypedDict

import numpy as np

from .._base.errors import UsageError
from ..trace.trace import Trace
from .demand import Jobs, jobs
from .policies import make
from .simulation import CHUNK, Setting, Simulation, SimulationDict, require_room, run


class TierDict(TypedDict):
    """One tier of `TieredSimulation.to_dict`."""

    name: str
    capacity: int
    hit_blocks: int


class TieredDict(SimulationDict):
    """What `TieredSimulation.to_dict` returns."""

    tiers: list[TierDict]
    exclusive: bool


@dataclass(frozen=True, eq=False)
class TieredSimulation(Simulation):
    """What a cache in tiers did with a trace; `evictions` are the blocks that left the last tier."""

    tiers: tuple[tuple[str, int], ...] = ()  # name and capacity in blocks, the first tier first
    exclusive: bool = True
    found: np.ndarray | None = None  # (tier, request) -> hit blocks that came from there

    def to_dict(self) -> TieredDict:
        """Keys as docs/cache/simulate.md lists them: those of a simulation, and `tiers`."""
        assert self.found is not None
        rows = slice(self.warm_up, None)
        tiers: list[TierDict] = [
            {"name": name, "capacity": capacity, "hit_blocks": int(found[rows].sum())}
            for (name, capacity), found in zip(self.tiers, self.found, strict=True)
        ]
        return {**super().to_dict(), "tiers": tiers, "exclusive": self.exclusive}


def simulate_tiers(
    trace: Trace,
    tiers: dict[str, int],
    policy: str = "lru",
    *,
    exclusive: bool = True,
    setting: Setting | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> TieredSimulation:
    """Run a trace through a cache in tiers and count from which tier each hit came.

    Args:
        trace: The trace.
        tiers: Name -> capacity in blocks, the first tier first; two or more.
        policy: The eviction policy of each tier.
        exclusive: A block is in one tier at a time; else each tier also holds what is in the tiers before it.
        setting: Gives mode and schedule; its capacity and policy are not used.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The hit blocks of each request, in total and by tier.

    Raises:
        UsageError: As in `simulate`; also where inclusive tiers do not grow.

    >>> from kvtrace.trace.building import toy
    >>> found = simulate_tiers(toy("0 1", "2 3", "0 1"), {"hbm": 2, "dram": 2})
    >>> found.hit_blocks.tolist(), found.found.tolist()
    ([0, 0, 2], [[0, 0, 0], [0, 0, 2]])
    """
    if len(tiers) < 2 or min(tiers.values()) < 1:
        raise UsageError("tiers are two or more, each of a block or more. Try --tiers hbm=5000,dram=50000.")
    sizes = tuple(tiers.items())
    setting = replace(setting or Setting(1), policy=policy, capacity=sizes[0][1])
    asked = jobs(trace, setting.mode)
    require_room(setting.capacity, asked)
    simulated = _exclusive if exclusive else _inclusive
    return simulated(trace, sizes, setting, asked, on_progress)


def tiered(setting: Setting, asked: Jobs, capacities: list[int]):
    """The engine of exclusive tiers; UsageError where the setting's engine or policy does not go in tiers."""
    from .core.tiers import Tiers
    from .policies.base import Context

    if setting.engine != "reference" or setting.switches or setting.bound:
        raise UsageError("tiers are the reference engine's, counted in total, flat, with a policy of its own.")
    contexts = [Context(asked.blocks, capacity, asked.trace, asked) for capacity in capacities]
    first, *lower = (make(setting.policy, context) for context in contexts)
    if first.expires:
        raise UsageError(f"policy {setting.policy} lets blocks expire, which tiers do not know. Try lru.")
    return Tiers(contexts[0], asked, first, lower)


def _exclusive(trace, sizes, setting, asked: Jobs, on_progress):
    engine = tiered(setting, asked, [capacity for _, capacity in sizes])
    engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(trace))
    while engine.row < len(asked):
        before = engine.row
        engine.advance(CHUNK)
        if on_progress:
            on_progress(engine.row - before)
    hits, found = engine.hits.astype(np.int64), engine.found.astype(np.int64)
    engine.close()
    return TieredSimulation(
        setting,
        trace,
        hits,
        engine.dropped,
        engine.early_frees,
        0,
        sizes,
        True,
        np.vstack([hits - found.sum(0), found]),
    )


def _inclusive(trace, sizes, setting, asked, on_progress):
    if any(below <= above for (_, above), (_, below) in pairwise(sizes)):
        raise UsageError("an inclusive tier holds all that the one above it holds. Give tiers that grow.")
    reach, found = np.zeros(len(trace), dtype=np.int64), []
    for _, capacity in sizes:
        done = run(replace(setting, capacity=capacity), trace, asked, on_progress)
        found.append(np.maximum(done.hit_blocks - reach, 0))
        reach = np.maximum(reach, done.hit_blocks)
    return TieredSimulation(setting, trace, reach, done.evictions, done.early_frees, 0, sizes, False, np.array(found))


def parse_tiers(text: str, parse: Callable[[str], int]) -> dict[str, int]:
    """Tiers as `hbm=5000,dram=50000`; `parse` turns a capacity's text into blocks.

    >>> parse_tiers("hbm=10,dram=200", int)
    {'hbm': 10, 'dram': 200}
    """
    tiers: dict[str, int] = {}
    for part in text.split(","):
        name, equals, capacity = (piece.strip() for piece in part.partition("="))
        if not (name and equals and capacity) or name in tiers:
            raise UsageError(f"{part.strip()!r} is no tier, or comes twice. Try --tiers hbm=5000,dram=50000.")
        tiers[name] = parse(capacity)
    return tiers
