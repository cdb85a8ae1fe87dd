"""What a run is made of: its cache, its instances, and the deployment that serves it in time.

Three frozen records. The fields with help are the options of `simulate` and `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._base.options import option
from .routers import ROUTERS, RouterName

if TYPE_CHECKING:
    from ..cache.demand import Mode
    from ..cache.engines import CapacityCounts, EngineName, FreeOrder, PoolOrder, Tree, Watermark
    from ..cache.layout import CacheLayout
    from .calibration.costs import Costs
    from .hardware.roofline import Roofline
    from .schedulers.base import BatchLimits, Scheduler, Tier
    from .schedulers.dynamo import DynamoCost
    from .simulation import StepCost

CACHE, ENGINE, TIME = "Cache", "Engine options", "Instances and time"  # groups of --help


@dataclass(frozen=True)
class CacheSetup:
    """What is cached: every engine with every policy at every capacity."""

    capacities: Iterable[int] | Mapping[str, Iterable[int]] | None = None  # blocks; None is ten sizes
    policies: Iterable[str | type] = ("lru",)
    engines: Iterable[EngineName] = ("reference",)
    layouts: Mapping[str, CacheLayout] | None = None  # engine -> the cache groups of a hybrid model
    mode: Mode = option(
        "block",
        "What is cached. block: each id counts as a full block. token: true lengths of prompts. grow: outputs too.",
        metavar="M", group=CACHE,
    )  # fmt: skip
    schedule: str | None = option(
        None,
        "Requests that are active together: serial is one at a time, concurrency:N is N at a time, open-loop:MS "
        "starts them at their times and takes MS ms per output token.  "
        "[default: serial; with --instances open-loop:30]",
        metavar="S", group=CACHE,
    )  # fmt: skip
    capacity_counts: CapacityCounts = option(
        "total",
        "Blocks that count: total is active and idle blocks, idle is idle blocks only. (reference)",
        metavar="WHAT", group=ENGINE,
    )  # fmt: skip
    pool: PoolOrder = option(
        "flat",
        "Blocks that can be evicted: flat is any idle block, leaf-first is idle blocks without a resident child. "
        "(reference)",
        metavar="WHICH", group=ENGINE,
    )  # fmt: skip
    free_order: FreeOrder = option(
        "prepend",
        "Position of freed unhashed blocks in the free queue: prepend, or append as before May 2026. (vllm)",
        metavar="HOW", group=ENGINE,
    )  # fmt: skip
    tree: Tree = option(
        "unified",
        "Tree of the cache: unified, or radix as in earlier versions. (sglang)",
        metavar="WHICH", group=ENGINE,
    )  # fmt: skip
    watermark: Watermark = option(
        "off", "on: evict a fifth of the blocks at 80 % use. (lmcache)", metavar="HOW", group=ENGINE
    )
    tiers: Mapping[str, int] | None = None  # name -> capacity in blocks, the first tier first, in place of capacities
    lower: Sequence[Tier] = ()  # in time: the tiers of an instance below the first one, which has the capacities
    inclusive: bool = option(
        False, "A tier also holds the blocks of the tiers above it.  [default: exclusive]", group=CACHE
    )
    gap: bool = True  # also simulate the offline optimum, for caches of one tier on one instance
    warm_up: int = 0  # the first requests, which `hits` leaves out
    domains: str | None = None  # the view of the trace's isolation domains, as in `in_domains`

    @property
    def engine_options(self) -> tuple[tuple[str, str], ...]:
        """The engine options that differ from their defaults."""
        from ..cache.engines import DEFAULTS, non_default

        return non_default({name: getattr(self, name) for name in DEFAULTS})

    @property
    def has_tiers(self) -> bool:
        """Whether there are tiers below the first one."""
        return bool(self.tiers or self.lower)

    def with_more_blocks(self, blocks: int) -> CacheSetup:
        """The cache with so many blocks more: in the lowest tier, if there are tiers.

        >>> CacheSetup([4]).with_more_blocks(3).capacities
        [7]
        >>> CacheSetup(tiers={"hbm": 2, "dram": 8}).with_more_blocks(3).tiers
        {'hbm': 2, 'dram': 11}
        """
        if self.lower:
            last = self.lower[-1]
            return replace(self, lower=(*self.lower[:-1], replace(last, capacity=last.capacity + blocks)))
        if self.tiers:
            name, size = list(self.tiers.items())[-1]
            return replace(self, tiers={**self.tiers, name: size + blocks})
        assert self.capacities is not None and not isinstance(self.capacities, Mapping)
        return replace(self, capacities=[size + blocks for size in self.capacities])


@dataclass(frozen=True)
class InstanceSetup:
    """Instances of a serving engine behind a router, each with a cache of its own; None is one cache and no router."""

    instances: int | None = option(
        None, "Number of instances behind a router, each with its own cache.", metavar="N", minimum=1, group=TIME
    )
    routers: Iterable[RouterName] | None = option(
        None, f"With --instances: {', '.join(ROUTERS)}.  [default: round-robin]", name="router", metavar="R,...",
        group=TIME,
    )  # fmt: skip
    router_seed: int = option(
        0,
        "Seed of --router dynamo, which draws among instances of equal cost, and of --start-inside.  [default: 0]",
        name="seed", metavar="N", minimum=0, group=TIME,
    )  # fmt: skip

    @property
    def is_routed(self) -> bool:
        """Whether a router has a choice."""
        return (self.instances or 1) > 1


@dataclass(frozen=True)
class Deployment:
    """What serves the requests in time: the GPUs and the schedulers. Without a cost there are no times."""

    gpu: str | None = option(
        None, "With --model: simulate serving in time on {rows}, or a JSON file; prints TTFT and TPOT.", metavar="G",
        group=TIME,
    )  # fmt: skip
    gpus: int | None = option(
        None, "With --gpu or --costs: GPUs per instance.  [default: 1; with --costs as many as were measured]",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    costs_file: str | None = option(
        None,
        "Costs that kvtrace calibrate wrote, in place of --gpu. --model then names another model than the measured "
        "one.",
        name="costs", metavar="FILE", group=TIME,
    )  # fmt: skip
    extrapolate: bool = option(
        False,
        "With --costs: allow runs with larger steps, batches or contexts than were measured, with a warning.",
        group=TIME,
    )  # fmt: skip
    step_tokens: int | None = option(
        None,
        "Largest number of tokens in a step: of an instance in time, or of a prompt for a --model with windows or "
        "states.  [default: 8192; with --costs as measured]",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    max_requests: int | None = option(
        None,
        "In time: largest number of requests that an instance serves at once.  "
        "[default: 1024 for vllm, 2048 for sglang, else 256; with --costs as measured]",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    scheduler: str | None = option(
        None,
        "In time, with --engine vllm, sglang or dynamo: options of its scheduler, with the engine's own names. "
        "Example: watermark=0.01,async_scheduling=off.",
        metavar="K=V,...", group=TIME,
    )  # fmt: skip
    model: Any = None  # a name of the catalog, or a config.json
    cost: StepCost | DynamoCost | None = None  # the time of a step
    schedulers: Mapping[str, Scheduler] | None = None  # engine -> its scheduler; the default is `scheduler_of(engine)`
    roofline: Roofline | None = None
    costs: Costs | None = None

    @property
    def timed(self) -> bool:
        """Whether the options name GPUs, or costs that were measured on some."""
        return bool(self.gpu or self.costs_file)

    @property
    def limits_steps(self) -> bool:
        """Whether an option that needs times is given."""
        return bool(self.step_tokens or self.max_requests or self.scheduler)

    def scheduled(self, engines: Sequence[str]) -> Deployment:
        """The deployment with the schedulers of these engines, if it has a cost."""
        if not self.cost:
            return self
        return replace(self, schedulers={engine: self._scheduler_of(engine) for engine in engines})

    @property
    def capacity_tokens(self) -> int:
        """The tokens that the GPUs of an instance hold."""
        return min(self._held(scheduler.limits) for scheduler in (self.schedulers or {}).values())

    def _held(self, limits: BatchLimits) -> int:
        assert self.roofline is not None
        if self.costs:
            return self.costs.capacity_tokens(self.roofline, limits)
        return self.roofline.capacity_tokens(limits.step_tokens, limits.requests)

    def _scheduler_of(self, engine: str) -> Scheduler:
        from .schedulers import BatchLimits, scheduler_of
        from .schedulers.base import with_options

        scheduler = scheduler_of(engine)
        limits = self.costs.batch_limits if self.costs else scheduler.limits
        scheduler = scheduler.limited(
            BatchLimits(self.step_tokens or limits.step_tokens, self.max_requests or limits.requests)
        )
        return with_options(scheduler, self.scheduler) if self.scheduler else scheduler
