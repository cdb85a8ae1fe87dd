"""What a plan is asked for: a target of times, the tiers below the GPUs, the prices; and the run that it stands for.

The fields with help are options of `kvtrace plan`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..._base.errors import UsageError
from ..._base.options import option
from ..._base.units import names, size_bytes
from ...cache.setup import CACHE, CacheSetup
from ..routers import FULL_ATTENTION, PLANNED, ROUTERS, RouterName
from ..run_options import TIME, InstanceSetup, TimeSetup

if TYPE_CHECKING:
    from ...cache.demand import Mode
    from ...cache.engines import EngineName
    from ...cache.layout import CacheLayout
    from ...cache.simulation import Setting
    from ..hardware.gpus import Prices
    from ..hardware.roofline import Roofline
    from ..lanes import ClosedLoop
    from ..run import Run
    from ..schedulers.base import BatchLimits, Scheduler, Tier

TARGET = "Target"  # group of --help


@dataclass(frozen=True)
class PlannedTier:
    """A tier below an instance's GPUs: DRAM, an SSD, or memory elsewhere.

    >>> PlannedTier.parse("dram=512GiB@25GB")
    PlannedTier(name='dram', size=549755813888, bandwidth=25000000000)
    """

    name: str
    size: int  # bytes
    bandwidth: float  # bytes per second to the GPUs

    @classmethod
    def parse(cls, text: str) -> PlannedTier:
        """Parse a name, a size, and bytes per second; UsageError if the text is not these three."""
        match = re.fullmatch(r"(\w{1,20})=([^@]+)@([^@]+)", text)
        if not match or match[1] == "hbm":
            raise UsageError(f"{text!r} is not a tier. Try dram=512GiB@25GB: a name (not hbm), size, bytes per second.")
        return cls(match[1], size_bytes(match[2]), size_bytes(match[3].removesuffix("/s")))


def _prices() -> Prices:
    from ..hardware.gpus import Prices

    return Prices()


def _limits() -> BatchLimits:
    from ..schedulers.base import BatchLimits

    return BatchLimits()


@dataclass(frozen=True)
class PlanTarget:
    """The input of a plan: a target, the tiers below the GPUs, and the prices."""

    ttft_s: float = option(  # upper limit for `quantile` of the requests
        2.0, "Target: the largest time to first token.", name="ttft", metavar="TIME", group=TARGET, shown="2s",
        parse=lambda ms: ms / 1000,
    )  # fmt: skip
    quantile: float = option(0.9, "Target: the share of the requests that must meet --ttft.", metavar="Q", group=TARGET)
    tiers: Sequence[PlannedTier] = option(  # of an instance
        (), "Tiers of an instance below its GPUs, fastest first. Example: dram=512GiB@25GB,ssd=4TB@3GB.",
        metavar="NAME=SIZE@RATE,...", group=TIME, parse=lambda text: tuple(map(PlannedTier.parse, names(text))),
    )  # fmt: skip
    write_through: bool = option(
        False,
        "A tier also holds the blocks of the tiers above it.  [default: only blocks evicted from them; vllm always]",
        group=TIME,
    )
    prices: Prices = field(default_factory=_prices)
    limits: BatchLimits = field(default_factory=_limits)
    routers: Sequence[RouterName] = option(
        PLANNED, f"Routers to try: {', '.join(ROUTERS)}.", name="router", metavar="R,...", group=TIME,
        shown=",".join(PLANNED), parse=names,
    )  # fmt: skip
    mode: Mode = option(
        "block",
        "As in kvtrace simulate, for engines other than vllm. block: each id is a full block. token: true lengths. "
        "grow: outputs are cached too.",
        metavar="M", group=CACHE,
    )  # fmt: skip
    engine: EngineName = option(
        "vllm",
        "Engine whose scheduler and cache an instance has: {rows}. With more --tiers than it has: reference.",
        metavar="E", group=CACHE,
    )  # fmt: skip
    layout: CacheLayout | None = None  # the cache groups that vLLM makes of the model; with tiers, they are not used
    loop: ClosedLoop | None = None  # plan lanes of a closed loop too; its number of lanes is not used

    @property
    def instance_engine(self) -> EngineName:
        """The engine of an instance: the one given, or reference if that has fewer lower tiers."""
        from ..schedulers import scheduler_of

        limit = scheduler_of(self.engine).most_lower_tiers
        has_tiers = not self.tiers or (limit is not None and len(self.tiers) <= limit)
        return self.engine if has_tiers else "reference"

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of an instance, with the limits of the target."""
        from ..schedulers import scheduler_of

        return scheduler_of(self.instance_engine, self.limits)

    @property
    def groups(self) -> CacheLayout | None:
        """The cache groups of an instance; None if all layers count as full attention."""
        return self.layout if self.engine == "vllm" and not self.tiers else None

    def with_routers(self) -> PlanTarget:
        """The target; of the default routers, with cache groups, those that do not count blocks of full attention."""
        if self.groups is None or tuple(self.routers) != PLANNED:
            return self
        return replace(self, routers=[name for name in PLANNED if name not in FULL_ATTENTION])

    def setting(self, blocks: int, block_bytes: int = 0) -> Setting:
        """The cache of an instance that holds `blocks` blocks, or cache groups in the memory of so many.

        Args:
            blocks: Blocks of all layers.
            block_bytes: Bytes of one of them; needed with cache groups.
        """
        from ...cache.simulation import Setting

        if self.groups is not None and block_bytes:
            blocks = max(1, blocks * block_bytes // self.groups.block_bytes)
        return self.scheduler.setting_of(
            Setting(blocks, mode=self.mode, engine=self.instance_engine, layout=self.groups)
        )

    def run(self, roofline: Roofline, block_size: int, blocks: int, router: RouterName = "round-robin") -> Run:
        """The run of one instance whose GPUs hold `blocks` blocks; a plan changes the number of instances.

        Args:
            roofline: The model on the GPUs of an instance.
            block_size: Tokens per block of the trace.
            blocks: Blocks of all layers.
            router: What stands before the instances.
        """
        from ..calibration.costs import step_cost
        from ..run import Run

        setting = self.setting(blocks, block_size * roofline.model.kv_bytes_per_token)
        engine, layout = setting.engine, setting.layout
        return Run(
            CacheSetup(
                [setting.capacity], engines=[engine], layouts={engine: layout} if layout else None, mode=setting.mode,
                gap=False,
            ),
            InstanceSetup(1, [router], lower=self.lower_tiers(roofline, block_size, blocks)),
            TimeSetup(cost=step_cost(roofline), schedulers={engine: self.scheduler}, roofline=roofline),
            open_too=False,
        )  # fmt: skip

    def lower_tiers(self, roofline: Roofline, block_size: int, blocks: int) -> list[Tier]:
        """The lower tiers in blocks, for the simulation.

        A tier with write-through also holds the blocks above it; with LRU it adds only the capacity beyond them.
        Schedulers that write copies themselves get the whole capacity.
        """
        from ..schedulers.base import Tier

        block_bytes = block_size * roofline.model.kv_bytes_per_token
        subtracts = self.write_through and not self.scheduler.copies_to_tiers
        lower, above = [], blocks
        for tier in self.tiers:
            capacity = int(tier.size // block_bytes) - (above if subtracts else 0)
            if capacity < 1:
                raise UsageError(f"Tier {tier.name} adds no block to the tiers above it. Give it a larger size.")
            lower.append(Tier(tier.name, capacity, block_bytes / tier.bandwidth))
            above += capacity
        return lower
