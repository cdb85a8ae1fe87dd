"""The result of a plan: one dataclass per part; its fields are the keys of the JSON (docs/serving/plan.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..._base.results import Described, DescribedResult, PlottedResult, column, columns_of
from ..expectations import ExpectedError
from ..overload import Overload
from ..routers import RouterName
from ..serving_run import TPOT, TTFT, Quantiles
from .pools import PoolCurve
from .pools import seconds as seconds

SCHEMA = 5  # version of the keys
BEYOND = "beyond what the costs were measured for"  # of an assumption, with --extrapolate


def usd(amount: float | None) -> str:
    """An amount of USD, with cents where it has some and is below 1,000.

    >>> usd(21.0), usd(2.4), usd(1234.5)
    ('21', '2.40', '1,234')
    """
    amount = amount or 0.0
    return f"{amount:,.0f}" if amount >= 1000 or amount == round(amount) else f"{amount:,.2f}"


def percentile(quantile: float) -> str:
    """The short name of a quantile.

    >>> percentile(0.9), percentile(0.995)
    ('p90', 'p99.5')
    """
    return f"p{100 * quantile:g}"


def gibibytes(value: float) -> str:
    """A number of GiB, with two digits below 1.

    >>> gibibytes(4911.72), gibibytes(0.0527)
    ('4,911.7', '0.053')
    """
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


@dataclass(frozen=True)
class PlanSetting(Described):
    """The trace, the model, and the GPUs of an instance."""

    requests: int
    block_size: int  # tokens
    model: str
    gpu: str
    gpus_per_instance: int
    deployment: dict[str, Any]  # engine, parallelism, dtypes, drafter and limits, where they are stated
    kv_bytes_per_token: int  # on all GPUs of an instance, copies included
    weight_bytes: int
    capacity_blocks: int  # of KV cache in an instance's GPUs
    capacity_gib: float
    usd_per_instance_hour: float
    usd_per_gpu_hour: float
    price_source: str  # of the price of a GPU
    assumes: list[str]


@dataclass(frozen=True)
class MemoryPoint(Described):
    """The hits of one LRU cache of a size."""

    capacity: int = field(metadata=column("blocks", ",", rank=0, left=True))
    gib: float = field(metadata=column("GiB", gibibytes))
    block_hit_rate: float = field(metadata=column("block hit rate", ".4f"))
    gap_to_unlimited: float = field(metadata=column("gap to unlimited", ".4f"))
    gap_to_belady: float | None = field(  # at two of the points
        default=None, metadata=column("gap to belady", ".4f", optional=True, always=True)
    )


@dataclass(frozen=True)
class LeastMemory(Described):
    """The smallest cache for a share of the possible hits."""

    capacity: int = field(metadata=column("blocks", ","))
    gib: float = field(metadata=column("GiB", gibibytes))


@dataclass(frozen=True)
class MemoryPlan(Described):
    """Hits against memory."""

    unlimited_block_hit_rate: float
    points: list[MemoryPoint]
    knee: MemoryPoint
    least: dict[str, LeastMemory]  # share of the possible hits, as in "90%"
    assumes: list[str]


@dataclass(frozen=True)
class TierPlan(Described):
    """One tier of an instance; the GPUs' own memory has no transfer."""

    name: str = field(metadata=column("tier", rank=0))
    capacity: int = field(metadata=column("blocks", ","))
    hit_blocks: int = field(metadata=column("hit blocks", ","))
    share: float = field(metadata=column("share of blocks", ".4f"))  # of all references to blocks
    fetch_seconds_per_block: float | None = field(
        default=None, metadata=column("fetch per block", ".2f", unit=" ms", scale=1000, optional=True, always=True)
    )
    bandwidth: float | None = field(default=None, metadata=column(optional=True))  # bytes a second
    fetch_pays: bool | None = field(  # whether fetching a block takes less time than computing it
        default=None, metadata=column("fetching pays", ("no", "yes").__getitem__, optional=True, always=True)
    )


@dataclass(frozen=True)
class TiersPlan(Described):
    """The tiers of an instance."""

    rows: list[TierPlan]
    break_even_bandwidth: float  # bytes a second from which on fetching pays
    assumes: list[str]


@dataclass(frozen=True)
class TimeTarget(Described):
    """The time to first token that is planned for, and the share of the requests that it holds for."""

    ttft_s: float
    quantile: float
    max_busy: float | None = None  # largest share of the time that instances are busy
    spare: int = 0  # instances beyond those that the load needs

    @property
    def place(self) -> str:
        """The quantile, as in "p90"."""
        return percentile(self.quantile)


@dataclass(frozen=True)
class PrefillFloor(Described):
    """The time of prefill alone at the target's quantile: no queue, no other request in a step."""

    without_hits_s: float
    with_hits_s: float  # with every possible hit: no number of instances is faster


@dataclass(frozen=True, kw_only=True)
class FleetFigures(Described):
    """A number of instances behind a router, and what they do with the trace."""

    instances: int = field(metadata=column("instances", ",", rank=0))
    ttft_s: float = field(metadata=column("TTFT", seconds, unit=" s"))  # at the target's quantile
    ttft_low: float  # interval of that quantile, which holds 90 % of the bootstrap replicates
    ttft_high: float
    ttft: Quantiles = field(metadata=column("TTFT p50", seconds, none="-", parts=TTFT))
    tpot: Quantiles = field(metadata=column("TPOT p50", ".1f", unit=" ms", none="-", scale=1000, parts=TPOT))
    requests_per_s: float
    block_hit_rate: float = field(metadata=column("block hit rate", ".4f"))
    imbalance: float
    requests_at_once: float = field(metadata=column(hidden=True))  # on an instance
    utilisation: float = field(metadata=column("busy", ".0%"))
    usd_per_hour: float = field(metadata=column("USD/hour", ",.2f", rank=0))
    usd: float  # of the trace, from its first arrival to its last token
    usd_per_million_requests: float
    usd_per_million_tokens: float  # of prompts and outputs


@dataclass(frozen=True, kw_only=True)
class InstancesPoint(FleetFigures):
    """A number of instances that was simulated."""

    meets: bool = field(  # whether the target is met and every request is served
        metadata=column("target", ("not met", "met").__getitem__)
    )
    rejected: int  # requests that do not fit into an instance
    overload: Overload | None = field(default=None, metadata=column(optional=True))

    @property
    def serves_all(self) -> bool:
        """Whether every request is served, in a steady service."""
        return not self.rejected and self.overload is None


@dataclass(frozen=True)
class UnmetTarget(Described):
    """A router with which no number of instances meets the target."""

    router: RouterName
    reason: str
    curve: list[InstancesPoint]
    instances: None = None


@dataclass(frozen=True, kw_only=True)
class RouterPlan(FleetFigures):
    """The fewest instances behind a router that meet the target."""

    router: RouterName = field(metadata=column("router", rank=0))
    saved_compute_s: float  # by hits
    saved_usd_per_hour: float
    most_instances: int | None  # the last number before one that misses the target; None: all larger ones meet it
    curve: list[InstancesPoint]  # all numbers that were simulated


@dataclass(frozen=True)
class ModelError(Described):
    """What the measured errors of simulated times mean for the best router."""

    statistic: str  # of the time to first token whose errors these are; "TPOT" without a recording
    error: float  # the largest that was measured, in size; without a recording the mean size
    ttft_low: float  # the time to first token at the target's quantile, if the simulated one is too long by the error
    ttft_high: float | None  # if it is too short; None: no bound, for an error of 100 % or more
    fewest_instances: int | None  # that meet the target if simulated times are too long by the error
    sure_instances: int | None  # that meet it if they are too short; None: no number does
    basis: str  # what the errors rest on
    # without a recording: measured times as multiples of simulated ones, at both ends of their interval
    step_factors: list[float] | None = field(default=None, metadata=column(optional=True))  # by TPOT
    ttft_factors: list[float] | None = field(default=None, metadata=column(optional=True))


@dataclass(frozen=True)
class InstancesPlan(Described):
    """Instances for the target, router by router."""

    target: TimeTarget
    floor: PrefillFloor
    routers: list[RouterPlan | UnmetTarget]
    best: RouterPlan | None
    assumes: list[str]
    model_error: ModelError | None = None  # None where no router meets the target, or nothing was measured


@dataclass(frozen=True)
class PlanAnswer(Described):
    """How many instances to run, what that costs, and what the service is then; or what would meet the target.

    The numbers that may be enough, and are sure, are without the spare instances.
    """

    sentence: str
    instances: int | None  # to run, spare ones included; None: no number meets the target
    gpus: int | None  # of all these instances
    router: RouterName | None
    spare: int
    may_be_enough: int | None  # the fewest, if simulated times are too long by their error; None: not measured
    enough: int | None  # the fewest, if simulated times are right
    sure: int | None  # the fewest, if simulated times are too short by it; None: no number is, or not measured
    usd_per_hour: float | None
    usd_per_day: float | None
    usd_per_million_tokens: float | None  # of prompts and outputs, at the rate of the trace
    ttft: float | None  # seconds, at the target's quantile, with all instances running
    busy: float | None  # share of the time
    ttft_without_spare: float | None  # with the spare instances down
    busy_without_spare: float | None
    block_hit_rate: float | None
    remedies: list[str]  # what would meet the target, if no number does


@dataclass(frozen=True)
class BlockSizePlan(Described):
    """The possible hits in blocks of one size."""

    block_size: int = field(metadata=column("block size", ",", rank=0, left=True))
    blocks: int
    block_hit_rate: float = field(metadata=column("block hit rate", ".4f"))
    token_hit_rate: float = field(metadata=column("token hit rate", ".4f"))


@dataclass(frozen=True)
class BlockSizesPlan(Described):
    """The possible hits in larger blocks."""

    rows: list[BlockSizePlan]
    assumes: list[str]


@dataclass(frozen=True)
class PricePlan(Described):
    """A provider's bill where prefixes live for some time after their last use."""

    ttl: str = field(metadata=column("time to live", rank=0))  # "none", "5m" or "1h"
    token_hit_rate: float = field(metadata=column("token hit rate", ".4f"))
    usd: float  # of the trace
    saved: float  # of the trace, against no caching
    usd_per_hour: float | None = field(metadata=column("USD/hour", ",.2f", rank=0, none="-"))  # of the trace's time
    saved_per_hour: float | None = field(metadata=column("saved/hour", ",.2f", none="-"))


@dataclass(frozen=True)
class PricesPlan(Described):
    """A provider's bills."""

    rows: list[PricePlan]
    best: str  # the ttl of the smallest bill
    assumes: list[str]


@dataclass(frozen=True)
class LoopPlan(Described):
    """The block hit rate of one pass beside that of the events, for the best router."""

    instances: int
    router: RouterName
    one_pass_block_hit_rate: float
    events_block_hit_rate: float
    difference: float
    assumes: list[str]


@dataclass(frozen=True, kw_only=True)
class LanePoint(Described):
    """A number of lanes of a closed loop on one instance that was simulated."""

    lanes: int = field(metadata=column("lanes", ",", rank=0, left=True))
    meets: bool  # whether the target is met and every request is served
    ttft_s: float = field(metadata=column("TTFT", seconds, unit=" s"))  # at the target's quantile
    ttft_low: float  # interval of that quantile, which holds 90 % of the bootstrap replicates
    ttft_high: float
    tpot: Quantiles
    e2e: Quantiles = field(metadata=column("end to end p50", seconds, unit=" s", parts={("p50",): "end to end p50"}))
    utilisation: float = field(metadata=column("busy", ".0%"))
    requests_per_s: float
    sessions_per_hour: float = field(metadata=column("sessions per hour", ",.1f"))
    block_hit_rate: float = field(metadata=column("block hit rate", ".4f"))
    rejected: int  # requests that do not fit into an instance
    usd_per_session: float | None = field(metadata=column("USD per session", ",.3f"))  # None: none was completed


@dataclass(frozen=True)
class LanesPlan(Described):
    """The largest number of lanes that meets the target on one instance."""

    lanes: int | None = field(metadata=column(optional=True))  # None: even one lane misses it
    best: LanePoint | None
    curve: list[LanePoint]  # all numbers that were simulated
    reason: str | None  # why even one lane misses the target
    assumes: list[str]


@dataclass(frozen=True)
class SplitPoint(Described):
    """Workers of two kinds, or as many instances that have both: 0 decode workers."""

    prefill_workers: int = field(metadata=column("prefill", ",", rank=0))
    decode_workers: int = field(metadata=column("decode", ",", rank=0))
    step_tokens: int = field(metadata=column("tokens a step", ",", rank=0))  # at most
    meets: bool
    ttft_s: float = field(metadata=column("TTFT", seconds, unit=" s"))  # at the target's quantile
    tpot_s: float = field(metadata=column("TPOT", ".1f", unit=" ms", scale=1000))  # likewise
    block_hit_rate: float = field(metadata=column("hit rate", ".1%"))
    usd_per_hour: float = field(metadata=column("USD/hour", ",.2f", rank=0))

    @property
    def workers(self) -> int:
        """All of them."""
        return self.prefill_workers + self.decode_workers


@dataclass(frozen=True)
class DisaggregatePlan(Described):
    """The fewest prefill and decode workers that meet a target, beside the fewest instances with chunked prefill."""

    sentence: str
    pays: bool | None = field(metadata=column(optional=True))  # None: neither, or only one of them, meets the target
    best: SplitPoint | None = field(metadata=column(optional=True))  # None: no split that was tried meets it
    aggregated: SplitPoint | None = field(metadata=column(optional=True))
    tpot_s: float
    curve: list[SplitPoint]  # all splits that were simulated
    assumes: list[str]


@dataclass(frozen=True)
class Sensitivity(Described):
    """The plan of the best router if one assumption changes by a factor."""

    what: str = field(metadata=column("assumption", rank=0))
    factor: float = field(metadata=column("factor", "g"))
    instances: int | None = field(  # the fewest that meet the target; None where no number does
        metadata=column("instances", ",", rank=0, none="not met")
    )
    usd_per_hour: float | None = field(metadata=column("USD/hour", ",.2f", rank=0))  # their cost
    ttft_s: float = field(
        metadata=column("TTFT", seconds, unit=" s")
    )  # at the target's quantile, with the planned number of instances
    ttft_low: float  # interval of that quantile, which holds 90 % of the bootstrap replicates
    ttft_high: float


@dataclass(frozen=True, repr=False)
class Plan(DescribedResult, PlottedResult):
    """The result of `kvtrace.serving.plan`, by part; https://github.com/kvtrace/kvtrace/blob/main/docs/serving/plan.md
    lists the keys."""

    _schema = SCHEMA

    answer: PlanAnswer
    setting: PlanSetting
    memory: MemoryPlan
    tiers: TiersPlan | None  # None without lower tiers
    instances: InstancesPlan
    block_sizes: BlockSizesPlan
    prices: PricesPlan
    expected_error: ExpectedError | None = field(  # of the times; None with the costs of a recording
        default=None, metadata=column(optional=True)
    )
    loop: LoopPlan | None = field(default=None, metadata=column(optional=True))  # None where no router meets the target
    sensitivity: list[Sensitivity] | None = field(default=None, metadata=column(optional=True))
    lanes: LanesPlan | None = field(default=None, metadata=column(optional=True))  # in a closed loop
    pool: PoolCurve | None = field(default=None, metadata=column(optional=True))  # that all instances share
    disaggregate: DisaggregatePlan | None = field(default=None, metadata=column(optional=True))

    def _headline(self) -> str:
        part, target, answer = self.setting, self.instances.target, self.answer
        gpus = f"{part.model}, {part.gpus_per_instance} x {part.gpu}, {part.capacity_gib:,.1f} GiB of KV cache"
        goal = f"TTFT {target.ttft_s:g} s for {target.quantile:.0%}"
        if answer.instances is None:
            return f"{gpus}, {goal}: target not met"
        cost = f"{usd(answer.usd_per_hour)} USD an hour"
        return f"{gpus}, {goal}: instances={answer.instances:,}, {answer.router}, {cost}"

    def _columns(self) -> dict[str, list[Any]]:
        """One row for each router."""
        return columns_of({"router": row.router} | row.to_dict() for row in self.instances.routers)
