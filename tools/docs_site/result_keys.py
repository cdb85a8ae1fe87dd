"""The keys of JSON objects that results make of their fields, with types, for the JSON schemas."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from kvtrace.cache.simulation import EngineOptions
from kvtrace.cache.tiered import TierDict
from kvtrace.serving.deployment import InstanceLoad
from kvtrace.serving.latencies import StatisticErrorDict
from kvtrace.serving.serving_run import Quantiles


class HitsDict(TypedDict):
    """The result of `Hits.to_dict`."""

    requests: int
    hit_blocks: int
    blocks: int
    hit_tokens: int
    tokens: int
    request_hits: float
    requests_with_blocks: int
    block_hit_rate: float
    token_hit_rate: float
    request_hit_rate: float


class GroupDict(TypedDict):
    """A group of `CacheLayout.to_dict`."""

    kind: str
    layers: int
    block_size: int
    window: int


class LayoutDict(TypedDict):
    """The result of `CacheLayout.to_dict`."""

    groups: list[GroupDict]
    block_bytes: int
    retention_interval: int | None


class SimulationDict(HitsDict, EngineOptions):
    """The result of `Simulation.to_dict`; docs/cache/simulate.md explains the keys."""

    layout: NotRequired[LayoutDict]
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


class TieredDict(SimulationDict):
    """The result of `TieredSimulation.to_dict`."""

    tiers: list[TierDict]
    exclusive: bool


class FleetDict(SimulationDict):
    """The result of `FleetSimulation.to_dict`; docs/cache/simulate.md explains the keys."""

    router: str
    instances: int
    imbalance: float
    loads: list[InstanceLoad]


class TimedTiersDict(TypedDict, total=False):
    """The tiers of each instance, the first one first; absent without lower tiers."""

    tiers: list[TierDict]


class ServingDict(FleetDict, TimedTiersDict):
    """The result of `ServingRun.to_dict`; docs/serving/serving.md explains the keys."""

    served: int
    rejected: int
    cached_tokens: int
    makespan_s: float
    requests_per_s: float
    utilisation: list[float]
    scheduler: str
    preemptions: int
    recomputed_tokens: int
    steps: int
    queued_s: Quantiles
    ttft_s: Quantiles
    tpot_s: Quantiles
    e2e_s: Quantiles


class CalibrationDict(TypedDict):
    """The result of `Calibration.to_dict`; docs/serving/calibrate.md explains the keys."""

    schema: int
    requests: int
    left_out: int
    held_out: int
    errors: list[StatisticErrorDict]
    fitted_errors: list[StatisticErrorDict]
    unfitted_errors: list[StatisticErrorDict]
    forms: dict[str, float]
    worth: dict[str, float]
    costs: dict[str, Any]


class AmountDict(TypedDict):
    """How much of a cure reaches a share of what its cause costs."""

    share: float
    tokens: int
    blocks: NotRequired[int]
    gib: NotRequired[float]
    ttl_ms: NotRequired[float]


class CureDict(TypedDict):
    """The result of `Cure.to_dict`; docs/serving/explain.md explains the keys."""

    name: str
    tokens: int
    share: float
    basis: str
    sentence: str
    prefill_s: float | None
    usd: float | None
    provider_usd: float | None
    amounts: list[AmountDict]


class LayersDict(TypedDict):
    """Layers of one kind, in JSON."""

    kind: str
    layers: int
    token_bytes: int
    window: int
    state_bytes: int
    tokens_per_entry: int
    indexer: bool


class ModelDict(TypedDict):
    """A model of the catalog, in JSON."""

    name: str
    parameters: int | None
    active_parameters: int | None
    kv_bytes_per_token: dict[str, int]
    state_bytes: int
    layers: list[LayersDict]
    has_times: bool
    published_parameters: float | None
    published_active: float | None
    sources: list[str]
    date: str


class OtherLayoutDict(TypedDict):
    """The hits of another setting of the engine."""

    setting: str
    block_size: int
    retention_interval: int | None
    hit_tokens: int


class ReachableHitsDict(TypedDict):
    """The result of `ReachableHits.to_dict`."""

    engine: str
    capacity: int | None
    prompt_tokens: int
    possible_hit_tokens: int
    hit_tokens: int
    prompts_below_a_block: int
    layout: LayoutDict | None
    others: list[OtherLayoutDict]
