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
from ...cache.tiers import Tier, TierScope, split_tiers
from ..disaggregation import bytes_per_second
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
    from ..schedulers.base import BatchLimits, Scheduler

TARGET = "Target"  # group of --help
MAX_SPARE = 512


@dataclass(frozen=True)
class PlannedTier:
    """A tier below an instance's GPUs: DRAM, an SSD, or a pool that all instances share.

    >>> PlannedTier.parse("dram=512GiB@25GB")
    PlannedTier(name='dram', size=549755813888, bandwidth=25000000000, scope='rank')
    """

    name: str
    size: int  # bytes
    bandwidth: float  # bytes per second to the GPUs
    scope: TierScope = "rank"  # "cluster": all instances share it

    @classmethod
    def parse(cls, text: str) -> PlannedTier:
        """Parse a name, a size, and bytes per second; UsageError if the text is not these three."""
        parts = split_tiers(text)
        (tier,) = parts if len(parts) == 1 else (None,)
        if tier is None or tier.name == "hbm" or not re.fullmatch(r"\w{1,20}", tier.name) or not tier.rate:
            raise UsageError(f"{text!r} is not a tier. {EXAMPLE}")
        if tier.words not in ({}, {"scope": "rank"}, {"scope": "cluster"}):
            raise UsageError(f"{text!r}: a plan has a name, size, rate and @cluster of a tier. {EXAMPLE}")
        return cls(tier.name, size_bytes(tier.capacity), tier.rate, tier.words.get("scope", "rank"))


EXAMPLE = "Try dram=512GiB@25GB: a name (not hbm), size, bytes per second; or pool=8TiB@cluster@10GB, which all share."


def _prices() -> Prices:
    from ..hardware.gpus import Prices

    return Prices()


@dataclass(frozen=True)
class PlanTarget:
    """The input of a plan: a target, the tiers below the GPUs, and the prices."""

    ttft_s: float = option(  # upper limit for `quantile` of the requests
        2.0, "Target: the largest time to first token.", name="ttft", metavar="TIME", group=TARGET, shown="2s",
        parse=lambda ms: ms / 1000,
    )  # fmt: skip
    quantile: float = option(0.9, "Target: the share of the requests that must meet --ttft.", metavar="Q", group=TARGET)
    max_busy: float | None = option(
        None, "Target: the largest share of the time that instances are busy, on average. Example: 70%.", metavar="S",
        group=TARGET, parse=float,
    )  # fmt: skip
    spare: int = option(
        0, "Instances beyond those that the load needs, as for N+1.", metavar="N", minimum=0, group=TARGET
    )
    tpot_s: float | None = option(  # upper limit for `quantile` of the requests
        None, "With --disaggregate: the largest time per output token.", name="tpot", metavar="TIME", group=TARGET,
        parse=lambda ms: ms / 1000,
    )  # fmt: skip
    disaggregate: bool = option(
        False, "Also plan prefill and decode on different workers, with --tpot: the fewest that meet the target, and "
        "what as many instances do.", group=TARGET,
    )  # fmt: skip
    kv_transfer_bandwidth: float | None = option(
        None, "With --disaggregate: bandwidth of a worker's link, such as 50GB/s.  [default: unlimited]",
        metavar="RATE", parse=bytes_per_second, group=TARGET,
    )  # fmt: skip
    gpu_price: float | None = option(
        None, "Price of a GPU for an hour, in place of the one that kvtrace assumes.", metavar="USD", group="Prices",
        parse=float,
    )  # fmt: skip
    tiers: Sequence[PlannedTier] = option(  # of an instance
        (), "Tiers of an instance below its GPUs, fastest first. Example: dram=512GiB@25GB,ssd=4TB@3GB. A last one "
        "with @cluster is a pool that all instances share: pool=8TiB@cluster@10GB.",
        metavar="NAME=SIZE@RATE,...", group=TIME, parse=lambda text: tuple(map(PlannedTier.parse, names(text))),
    )  # fmt: skip
    write_through: bool = option(
        False,
        "A tier also holds the blocks of the tiers above it.  [default: only blocks evicted from them; vllm always]",
        group=TIME,
    )
    prices: Prices = field(default_factory=_prices)
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
    loop: ClosedLoop | None = None  # plan lanes of a closed loop too; its number of lanes is not used

    def __post_init__(self) -> None:
        if self.max_busy is not None and not 0 < self.max_busy <= 1:
            raise UsageError("--max-busy must be above 0 % and at most 100 %. Example: 70%.")
        if not 0 <= self.spare <= MAX_SPARE:
            raise UsageError(f"--spare must be from 0 to {MAX_SPARE}.")
        if any(tier.scope != "rank" for tier in self.tiers[:-1]):
            raise UsageError("A plan has one pool that instances share, the last tier. Put it behind the others.")
        if self.disaggregate != (self.tpot_s is not None):
            raise UsageError("--disaggregate and --tpot need each other. Example: --disaggregate --tpot 30ms.")
        if self.kv_transfer_bandwidth is not None and not self.disaggregate:
            raise UsageError("--kv-transfer-bandwidth needs --disaggregate.")
        if self.disaggregate and (self.tiers or self.loop):
            raise UsageError("--disaggregate supports neither --tiers nor a closed loop yet. Leave them out.")

    @property
    def own_tiers(self) -> Sequence[PlannedTier]:
        """The tiers of one instance."""
        return [tier for tier in self.tiers if tier.scope == "rank"]

    @property
    def pool(self) -> PlannedTier | None:
        """The tier that all instances share, if there is one."""
        return self.tiers[-1] if len(self.own_tiers) < len(self.tiers) else None

    def met_by(self, ttft_s: float, busy: float) -> bool:
        """Whether a time to first token at the quantile, and a share of the time, meet the target."""
        return ttft_s <= self.ttft_s and self.allows(busy)

    def allows(self, busy: float) -> bool:
        """Whether instances may be busy for this share of the time."""
        return self.max_busy is None or busy <= self.max_busy

    def on(self, time: TimeSetup, layout: CacheLayout | None = None) -> Planned:
        """The target on a deployment; the engine is `reference` if the deployment's has fewer tiers.

        Args:
            time: The deployment, and the costs of a calibration if there are some.
            layout: The cache groups that vLLM makes of the model.

        Raises:
            UsageError: The deployment lacks a model or a GPU, or has ranks that share requests.
        """
        from ..hardware.room import step_limits
        from ..schedulers import scheduler_of

        engine = time.deployment.engine
        limit = scheduler_of(engine).most_lower_tiers
        if self.own_tiers and (limit is None or len(self.own_tiers) > limit):
            if time.costs:
                raise UsageError(f"--costs cannot be combined with these --tiers: engine {engine} has fewer.")
            engine = "reference"
        if time.deployment.data_parallel_size > 1:
            raise UsageError(
                "kvtrace plan finds the number of instances, and a data-parallel rank is one. Leave out "
                "--data-parallel-size."
            )
        limits = step_limits(replace(time.deployment, engine=engine))
        deployment = replace(
            time.deployment, engine=engine, max_num_batched_tokens=limits.step_tokens, max_num_seqs=limits.requests
        )
        groups = layout if engine == "vllm" and not self.tiers else None
        target = self
        if groups is not None and tuple(self.routers) == PLANNED:  # without those that count blocks of full attention
            target = replace(self, routers=[name for name in PLANNED if name not in FULL_ATTENTION])
        resolved = replace(time, deployment=deployment).resolved([engine])
        if self.gpu_price is not None and resolved.roofline:
            gpu = replace(resolved.roofline.gpu, price_per_hour=self.gpu_price)
            resolved = resolved.with_roofline(replace(resolved.roofline, gpu=gpu))
        return Planned(target, resolved, groups)


@dataclass(frozen=True)
class Planned:
    """A target on a deployment; `PlanTarget.on` makes one."""

    target: PlanTarget
    time: TimeSetup
    groups: CacheLayout | None = None  # of an instance; None if all layers count as full attention
    pooled: int = 0  # blocks of the target's pool that are below the instances in time

    @property
    def engine(self) -> EngineName:
        """The engine of an instance."""
        return self.time.deployment.engine

    @property
    def roofline(self) -> Roofline:
        """The model on the GPUs of an instance."""
        assert self.time.roofline is not None
        return self.time.roofline

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of an instance."""
        return (self.time.schedulers or {})[self.engine]

    @property
    def limits(self) -> BatchLimits:
        """Its tokens in a step, and requests at once."""
        return self.scheduler.limits

    def setting(self, blocks: int) -> Setting:
        """The cache of an instance of so many blocks: of all layers, or of the pool of its cache groups."""
        from ...cache.simulation import Setting

        drafting = (self.time.drafting([self.engine]) or {}).get(self.engine)
        setting = Setting(blocks, mode=self.target.mode, engine=self.engine, layout=self.groups, drafting=drafting)
        return self.scheduler.setting_of(setting)

    def capacity(self, block_size: int) -> int:
        """Blocks of an instance, as `kvtrace simulate --gpu` has them; UsageError if the weights do not fit."""
        return self.time.blocks_of(self.engine, block_size, self.groups)

    def run(self, block_size: int, blocks: int | None = None, router: RouterName = "round-robin") -> Run:
        """The run of one instance; a plan changes the number of instances.

        Args:
            block_size: Tokens per block of the trace.
            blocks: Blocks of an instance; None is what its GPUs hold.
            router: What stands before the instances.
        """
        from ..run import Run

        blocks = self.capacity(block_size) if blocks is None else blocks
        setting = self.setting(blocks)
        engine, layout = setting.engine, setting.layout
        return Run(
            CacheSetup(
                [setting.capacity], engines=[engine], layouts={engine: layout} if layout else None,
                drafting=self.time.drafting([engine]), mode=setting.mode, gap=False,
            ),
            InstanceSetup(1, [router], lower=self.lower_tiers(block_size, blocks)),
            self.time,
            open_too=False,
        )  # fmt: skip

    def lower_tiers(self, block_size: int, blocks: int) -> list[Tier]:
        """The lower tiers in blocks, for the simulation.

        A tier with write-through also holds the blocks above it; with LRU it adds only the capacity beyond them.
        Schedulers that write copies themselves get the whole capacity.
        """
        block_bytes = block_size * self.roofline.model.kv_bytes_per_token
        subtracts = self.target.write_through and not self.scheduler.copies_to_tiers
        lower, above = [], blocks
        for tier in self.target.own_tiers:
            capacity = int(tier.size // block_bytes) - (above if subtracts else 0)
            if capacity < 1:
                raise UsageError(f"Tier {tier.name} adds no block to the tiers above it. Give it a larger size.")
            lower.append(Tier(tier.name, capacity, block_bytes / tier.bandwidth))
            above += capacity
        if (pool := self.target.pool) is not None and self.pooled:
            lower.append(Tier(pool.name, self.pooled, block_bytes / pool.bandwidth, scope="cluster"))
        return lower
