"""Bounds on the gap that an engine can close: what a table knows in hindsight, and an oracle of dead blocks.

`classes in hindsight` is reuse-density with the same features, trained on the half that is counted. `fine in hindsight`
has more buckets and a class for each cell. Both see the future only through the statistics of classes; a gain of
the second over the first may be chance. `dead blocks` knows of each block whether it is used again, but not when: it
evicts those that are not, then the least recent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kvtrace
from kvtrace.cache.demand import block_demand
from kvtrace.cache.reuse_training import train
from kvtrace.cache.structures.reuse_table import Bounds
from kvtrace.trace.trace import Trace

FINE = Bounds(
    turns=tuple(range(2, 11)), uses=(3, 4, 5, 6, 8, 10, 15, 20, 40, 80),
    new_blocks=(2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    gaps_ms=tuple(5_000 * 2 ** (step / 2) for step in range(16)),
)  # fmt: skip


class DeadBlocks:
    """Evicts blocks without a next use first, then the least recent; of one request the deepest."""

    def __init__(self, context):
        self.context = context
        demand = context.demand
        self.last_row = np.full(context.blocks, -1)  # block -> the last request that uses it
        self.last_row[demand.ids] = np.repeat(np.arange(len(demand)), demand.full)
        self.dead, self.alive = {}, {}  # evictable blocks, least recent first

    def insert(self, block):
        """Nothing: the block is pinned."""

    def use(self, block):
        """The block is pinned now."""
        self.remove(block)

    def release(self, block):
        """The block joins its queue; a request releases its blocks tail first."""
        dead = self.last_row[block] <= self.context.request
        (self.dead if dead else self.alive)[block] = None

    def victim(self):
        """The least recent dead block, else the least recent one."""
        return next(iter(self.dead or self.alive), None)

    def remove(self, block):
        """The block leaves its queue."""
        self.dead.pop(block, None)
        self.alive.pop(block, None)


def bounds_of(trace: Trace, capacity: int) -> dict[str, int]:
    """Name -> hit blocks of the second half.

    >>> trace = kvtrace.toy(*["0 1", "2", "3", "0 1", "4", "0 1"] * 4, gap_ms=1000)
    >>> bounds_of(trace, 3)["dead blocks"]
    11
    """
    demand, half = block_demand(trace), len(trace) // 2
    tables: dict[str, Callable] = {
        "classes in hindsight": lambda: train(trace, demand, half),
        "fine in hindsight": lambda: train(trace, demand, half, bounds=FINE, classes=FINE.cells),
    }
    hits = {"dead blocks": kvtrace.cache.simulate(trace, capacity, DeadBlocks).hit_blocks[half:].sum()}
    with tempfile.TemporaryDirectory() as folder:
        for name, trained in tables.items():
            trained().write(Path(folder) / "table.json")
            run = kvtrace.cache.simulate(trace, capacity, f"reuse-density:{folder}/table.json", pool="leaf-first")
            hits[name] = run.hit_blocks[half:].sum()
    return {name: int(count) for name, count in hits.items()}
