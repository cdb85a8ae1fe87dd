"""What a pool that instances share buys: the hits of each size, what is fetched, and when fetching pays.

The pool is written through, as those of Mooncake and LMCache: its order is that of all requests that reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._base.results import Described, DescribedResult, column, columns_of
from ..._base.units import GIB, require_lists
from ...cache.demand import block_demand, parse_schedule
from ...cache.simulation import Setting, whole_blocks
from ...cache.tiers import Tier
from ...trace.columns import require_trace
from ...trace.domains import in_domains
from ...trace.hits import leading_tokens, time_windows
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, require_known
from ..instances import OVERLAP, simulate_instances
from ..routers import RouterName, check_router

if TYPE_CHECKING:
    from ..hardware.roofline import Roofline

WINDOW_MS = 60_000.0  # of the busiest minute
ASSUMES = (
    "one pass, LRU, engine reference; the pool is written through; a fetch has its link for itself",
    "pays above: what a size fetches, divided by the time in which one instance computes it, without queues",
)


def gigabytes(bytes_per_s: float) -> str:
    """A rate in GB/s, with two digits below 10.

    >>> gigabytes(25e9), gigabytes(1.234e9)
    ('25.0', '1.2')
    """
    rate = bytes_per_s / 1e9
    return f"{rate:,.1f}" if rate >= 1 else f"{rate:.2g}"


def seconds(value: float) -> str:
    """A time in a table: two digits after the point below 100 s.

    >>> seconds(1.9931), seconds(11377.99)
    ('1.99', '11,378')
    """
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


@dataclass(frozen=True, kw_only=True)
class PoolPoint(Described):
    """A size of a pool: the hits by source, and what its link carries."""

    capacity: int = field(metadata=column("pool blocks", ",", rank=0))
    gib: float | None = field(default=None, metadata=column("GiB", ",.1f", optional=True))
    own_hit_blocks: int = field(metadata=column("own hits", ","))  # in the tiers of the instances themselves
    pool_hit_blocks: int = field(metadata=column("pool hits", ",", rank=0))
    block_hit_rate: float = field(metadata=column("block hit rate", ".4f"))  # of both
    stored_blocks: int  # that instances write to the pool
    fetched_bytes: float | None = field(default=None, metadata=column(optional=True))
    busiest_bytes_per_s: float | None = field(  # to all instances together, in the minute with the most hits
        default=None, metadata=column("busiest minute", gigabytes, unit=" GB/s", optional=True)
    )
    saved_s: float | None = field(  # seconds in which instances would compute what they fetch
        default=None, metadata=column("saves", ",.0f", unit=" s", optional=True)
    )
    break_even_bandwidth: float | None = field(  # bytes / `saved_s`: above it fetching is faster
        default=None, metadata=column("pays above", gigabytes, unit=" GB/s", none="-", optional=True)
    )
    ttft_s: float | None = field(  # at a plan's quantile, in time: fetches from the pool wait for each other
        default=None, metadata=column("TTFT", seconds, unit=" s", none="-", optional=True)
    )


@dataclass(frozen=True, repr=False)
class PoolCurve(DescribedResult):
    """The sizes of a pool below instances behind a router."""

    instances: int
    router: RouterName
    first_capacity: int  # blocks of the first tier of each instance
    block_size: int  # tokens
    rows: list[PoolPoint]
    planned: int | None = field(default=None, metadata=column(optional=True))  # the size that a plan was asked for
    bandwidth: float | None = field(  # bytes a second to one instance, if it is known
        default=None, metadata=column(optional=True)
    )
    fewest: int | None = field(default=None, metadata=column(optional=True))  # instances for a plan's target with it
    assumes: list[str] = field(default_factory=lambda: list(ASSUMES))

    def _headline(self) -> str:
        most = max(self.rows, key=lambda row: row.block_hit_rate, default=None)
        best = "" if most is None else f", {most.capacity:,} blocks: block_hit_rate={most.block_hit_rate:.4f}"
        return f"a pool below {self.instances:,} instances of {self.first_capacity:,} blocks{best}"

    def _columns(self) -> Mapping[str, Any]:
        return columns_of(row.to_dict() for row in self.rows)


def pool_curve(
    trace: Trace,
    sizes: Iterable[int],
    *,
    instances: int,
    first: int,
    router: RouterName = "round-robin",
    lower: Sequence[Tier] = (),
    schedule: str = OVERLAP,
    kv_bytes_per_token: int | None = None,
    roofline: Roofline | None = None,
    bandwidth: float | None = None,
) -> PoolCurve:
    """Simulate pools of several sizes below instances behind a router.

    Args:
        trace: The trace.
        sizes: Capacities of the pool in blocks; 0 is none.
        instances: The number of instances.
        first: Blocks of the first tier of each instance.
        router: A router of https://github.com/kvtrace/kvtrace/blob/main/docs/cache/simulate.md, without times.
        lower: Tiers between the first one and the pool.
        schedule: "open-loop:MS" or "serial", as in `simulate_instances`.
        kv_bytes_per_token: Bytes of KV cache per token; the default is that of the roofline, if there is one.
        roofline: The model on the GPUs of an instance: adds the time that fetching saves, and when it pays.
        bandwidth: Bytes per second of the link to an instance, which the result states.

    Returns:
        A point for each size, in ascending order.

    Raises:
        UsageError: An argument is not valid.

    >>> from kvtrace.trace.building import toy
    >>> curve = pool_curve(toy("0 1", "0 1", "2 3", "0 1"), [0, 4], instances=2, first=2, schedule="serial")
    >>> [(point.own_hit_blocks, point.pool_hit_blocks) for point in curve.rows]
    [(2, 0), (2, 2)]
    """
    require_trace(trace)
    require_known(trace, trace.meta, "what a pool hits", PREFIXES)
    require_lists(sizes=sizes)
    trace = in_domains(trace)
    check_router(router, in_time=False)
    if roofline is not None and kv_bytes_per_token is None:
        kv_bytes_per_token = roofline.model.kv_bytes_per_token
    setting = Setting(first, schedule=parse_schedule(schedule))
    demand, windows = block_demand(trace, *setting.demand_options), time_windows(trace.timestamp, WINDOW_MS)
    rows = []
    for size in sorted({whole_blocks(size) for size in sizes}):
        tiers = (Tier("hbm", first), *lower, Tier("pool", size, scope="cluster", copies="write-through"))
        done = simulate_instances(
            trace, instances, router, setting=setting, schedule=schedule, tiers=tiers, demand=demand
        )
        assert done.sources is not None
        pooled = done.sources.hits[-1]
        own = done.hit_blocks - pooled
        point = PoolPoint(
            capacity=size, own_hit_blocks=int(own.sum()), pool_hit_blocks=int(pooled.sum()),
            block_hit_rate=done.hits.block_hit_rate, stored_blocks=done.sources.traffic[-1].stored,
        )  # fmt: skip
        if kv_bytes_per_token is not None:
            block_bytes = trace.block_size * kv_bytes_per_token
            busiest = int(np.add.reduceat(pooled, windows.starts).max(initial=0)) if len(trace) else 0
            point = replace(
                point, gib=size * block_bytes / GIB, fetched_bytes=float(pooled.sum()) * block_bytes,
                busiest_bytes_per_s=busiest * block_bytes / (WINDOW_MS / 1000),
            )  # fmt: skip
        if roofline is not None and point.fetched_bytes is not None:
            before = leading_tokens(trace, own)
            tokens = leading_tokens(trace, done.hit_blocks) - before
            saved = float(roofline.compute_s(tokens, before).sum())
            point = replace(point, saved_s=saved, break_even_bandwidth=point.fetched_bytes / saved if saved else None)
        rows.append(point)
    assumes = list(ASSUMES if roofline is not None else ASSUMES[:1])
    return PoolCurve(instances, router, first, trace.block_size, rows, bandwidth=bandwidth, assumes=assumes)
