"""A trace through a prefix cache: what would have hit, request by request.

What one request does: its leading resident blocks are matched and pinned, the missing ones are allocated root first,
the policy's victims making room, and at its end all are unpinned tail first. docs/cache/simulate.md states the
semantics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict, cast

import numpy as np

from .._base.errors import UsageError
from ..trace.hits import Hits, HitsDict, count_hits
from ..trace.trace import Trace
from . import engines
from .demand import Jobs, jobs
from .policies import POLICIES, Row
from .schedules import ONE, Schedule, parse_schedule

SCHEMA = 1  # version of the keys of to_dict
CHUNK = 1 << 16  # requests between two looks at the progress
DEFAULTS = {
    "capacity_counts": "total",
    "pool": "flat",
    "free_order": "prepend",
    "watermark": "off",
}  # switch -> what an engine does without


@dataclass(frozen=True)
class Setting:
    """One cache to simulate: which engine, in what order it evicts, how much it holds, and who is live when."""

    capacity: int  # blocks
    policy: str = "lru"
    engine: str = "reference"
    mode: str = "block"
    schedule: Schedule = ONE
    switches: tuple[tuple[str, str], ...] = ()  # those that are not as DEFAULTS has them

    @property
    def bound(self) -> bool:
        """Whether its policy is a bound, and no engine's."""
        return self.row is not None and self.row.bound

    @property
    def row(self) -> Row | None:
        """The row of its policy in POLICIES; None for a user's class."""
        return POLICIES.get(self.policy.partition(":")[0])

    @property
    def asks(self) -> tuple[str, bool]:
        """What makes a trace's jobs: the mode, and whether a prompt's last token is always computed."""
        return self.mode, not self.bound and engines.find(self.engine).recompute_last


class EngineOptions(TypedDict, total=False):
    """The options of an engine, where it has them."""

    capacity_counts: str
    pool: str
    free_order: str
    watermark: str


class SimulationDict(HitsDict, EngineOptions):
    """What `Simulation.to_dict` returns; docs/cache/simulate.md explains the keys."""

    engine: str
    policy: str
    mode: str
    schedule: str
    capacity: int
    capacity_tokens: int
    evictions: int
    early_frees: int
    warm_up_requests: int


class WindowDict(HitsDict):
    """One window of `Simulation.over_time`."""

    start_ms: float


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a cache did with a trace: the hit blocks of each request, and what was evicted and freed early."""

    setting: Setting
    trace: Trace
    hit_blocks: np.ndarray  # request -> leading blocks that were resident
    evictions: int  # blocks that were cached and had to go
    early_frees: int  # requests that ended before their time, to make room
    warm_up: int = 0  # the first requests, that `hits` leaves out

    @property
    def hits(self) -> Hits:
        """The counts, of the requests after the warm-up."""
        return count_hits(self.trace, self.hit_blocks, slice(self.warm_up, None))

    def over_time(self, window_ms: float) -> list[WindowDict]:
        """The counts of each window of `window_ms` milliseconds that has requests.

        >>> from kvtrace.trace.building import toy
        >>> [window["hit_blocks"] for window in simulate(toy("0", "0", "0", gap_ms=60), 1).over_time(100)]
        [1, 1]
        """
        if not window_ms > 0:
            raise UsageError(f"a window of {window_ms:g} ms has no requests. Try 60s.")
        number = (self.trace.timestamp // window_ms).astype(np.int64)
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        stops = [*starts[1:], len(number)]
        return [
            {
                "start_ms": float(number[start] * window_ms),
                **count_hits(self.trace, self.hit_blocks, slice(start, stop)).to_dict(),
            }
            for start, stop in zip(starts, stops, strict=True)
        ]

    def to_dict(self) -> SimulationDict:
        """Keys as docs/cache/simulate.md lists them."""
        setting = self.setting
        return {
            "engine": setting.engine, "policy": setting.policy, "mode": setting.mode,
            "schedule": str(setting.schedule), "capacity": setting.capacity,
            "capacity_tokens": setting.capacity * self.trace.block_size,
            **self._switches(), **self.hits.to_dict(),
            "evictions": self.evictions, "early_frees": self.early_frees, "warm_up_requests": self.warm_up,
        }  # fmt: skip

    def _switches(self) -> EngineOptions:
        """The switches that the engine takes, and how they stood."""
        taken = () if self.setting.bound else engines.find(self.setting.engine).switches
        given = DEFAULTS | dict(self.setting.switches)
        return cast(EngineOptions, {name: value for name, value in given.items() if name in taken})


def simulate(
    trace: Trace,
    capacity: int,
    policy: str = "lru",
    *,
    engine: str = "reference",
    mode: str = "block",
    schedule: str = "c1",
    capacity_counts: str = "total",
    pool: str = "flat",
    free_order: str = "prepend",
    watermark: str = "off",
    warm_up: int = 0,
) -> Simulation:
    """Run a trace through a prefix cache and count the hits.

    Args:
        trace: The trace.
        capacity: Blocks that the cache holds.
        policy: An eviction policy of docs/cache/policies.md, or "module:Class" for one of your own.
        engine: "reference", or the serving engine whose cache is imitated: "vllm", "sglang" or "lmcache".
        mode: Blocks that a request holds: "block", "token" or "grow"; see docs/cache/simulate.md.
        schedule: Which requests are active at once: "c1", "window:N" or "timed:MS".
        capacity_counts: Blocks that the capacity limits: "total", or "idle" ones only.
        pool: Order among the idle blocks of the pool: "flat" or "leaf-first".
        free_order: Where an engine puts freed blocks: "prepend" or "append".
        watermark: "on" evicts a fifth of the blocks once 80 % are in use, as LMCache does; or "off".
        warm_up: The first requests, which `hits` leaves out.

    Returns:
        The hit blocks of each request, evictions and counts.

    Raises:
        UsageError: An argument is not valid, or the longest request does not fit into the capacity.
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> simulate(toy("0 1 2", "3", "0 1"), capacity=3).hit_blocks.tolist()
    [0, 0, 2]
    """
    given = {"capacity_counts": capacity_counts, "pool": pool, "free_order": free_order, "watermark": watermark}
    setting = Setting(
        capacity, policy, engine, mode, parse_schedule(schedule), switched(given),
    )  # fmt: skip
    return replace(run(setting, trace), warm_up=warm_up)


def switched(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The switches that are not as DEFAULTS has them, for a Setting.

    >>> switched({"pool": "leaf-first", "watermark": "off"})
    (('pool', 'leaf-first'),)
    """
    return tuple((name, value) for name, value in given.items() if value != DEFAULTS[name])


def run(
    setting: Setting, trace: Trace, asked: Jobs | None = None, on_progress: Callable[[int], None] | None = None
) -> Simulation:
    """One setting over a trace; `asked` are its jobs where they are known, and `on_progress` gets requests served."""
    asked = asked or jobs(trace, *setting.asks)
    engine = build(setting, asked)
    while engine.row < len(asked):
        before = engine.row
        engine.advance(CHUNK)
        if on_progress:
            on_progress(engine.row - before)
    hit_blocks = engine.hits.astype(np.int64)
    engine.close()
    return Simulation(setting, trace, hit_blocks, engine.evictions, engine.early_frees)


def build(setting: Setting, asked: Jobs, *, must_hold: bool = True):
    """The engine of a setting, ready to run; UsageError where what is asked of it does not fit.

    Without `must_hold`, requests that it does not hold are the caller's to keep away.
    """
    from .policies.base import Context

    if setting.capacity < 1:
        raise UsageError(f"a capacity of {setting.capacity} blocks holds nothing. Try 1 or more.")
    switches = dict(setting.switches)
    if setting.bound:
        return _upper_bound(setting, asked, switches)
    counts_all = switches.get("capacity_counts", "total") == "total"
    if must_hold and counts_all and not engines.find(setting.engine).any_capacity:
        require_room(setting.capacity, asked)
    context = Context(asked.blocks, setting.capacity, asked.trace, asked)
    engine = engines.build(setting.engine, asked, context, setting.policy, **switches)
    engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(asked.trace))
    return engine


def _upper_bound(setting, asked, switches):
    """The founding cache with an order that looks ahead; it may let a block go as soon as it was used.

    A cache whose capacity counts live blocks holds no more than that when a request comes, so what one request at a
    time can reach bounds it under every schedule. Where only idle blocks count, live ones add to that.
    """
    from .policies.base import Context

    capacity = asked.blocks if setting.policy == "unlimited" else setting.capacity
    context = Context(asked.blocks, max(capacity, 1), asked.trace, asked)
    engine = engines.build("reference", asked, context, setting.policy, capacity_counts="idle")
    if switches.get("capacity_counts") == "idle":
        engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(asked.trace))
    return engine


def require_room(capacity: int, asked: Jobs) -> None:
    """UsageError where a capacity that counts live blocks does not hold the longest request."""
    if len(asked) and capacity < asked.most.max():
        row = int(asked.most.argmax())
        raise UsageError(
            f"a capacity of {capacity:,} blocks does not hold the longest request: request {row:,} needs "
            f"{int(asked.most[row]):,}. Try more, or --capacity-counts idle."
        )
