"""The types of what `analyze`, `curve` and `compare` print with `--json`, for their schemas."""

from __future__ import annotations

from typing import Literal, TypedDict

from kvtrace.analysis.arrivals import Arrivals
from kvtrace.analysis.delivered import DeliveredDict
from kvtrace.analysis.distribution import Distribution
from kvtrace.analysis.popularity import DepthBand, Popularity
from kvtrace.analysis.session_statistics import ToolAnswers
from kvtrace.serving.run import DomainsDict

from .result_keys import HitsDict, ReachableHitsDict


class Group(TypedDict):
    """The requests of one turn or of one type; null is what the trace does not know."""

    requests: int
    hit_blocks: int | None
    blocks: int | None
    hit_tokens: int | None
    tokens: int | None
    request_hits: float | None
    requests_with_blocks: int | None
    block_hit_rate: float | None
    token_hit_rate: float | None
    request_hit_rate: float | None
    name: str
    input_length: Distribution
    output_length: Distribution


class SessionHits(TypedDict):
    """The hits by the session that used the blocks before."""

    same_session: HitsDict
    across_sessions: HitsDict


class Subagents(TypedDict):
    """The subagents of sessions."""

    total: int
    per_session: Distribution
    width: Distribution
    calls: Distribution


class Sessions(TypedDict):
    """The sessions of a trace; null is what the trace does not tell."""

    sessions: int
    requests_in_sessions: int
    turns: Distribution
    duration_ms: Distribution
    compactions: Distribution
    context_drops: Distribution
    growth: Distribution
    turn_gap_ms: Distribution
    think_ms: Distribution | None
    service_ms: Distribution | None
    tool_share: Distribution | None
    tool_answers: ToolAnswers | None
    subagents: Subagents | None
    hits: SessionHits | None
    by_turn: list[Group]


class BlockSize(HitsDict):
    """The hits in blocks of one size."""

    block_size: int
    distinct_blocks: int


class BasicsFile(TypedDict):
    """What `kvtrace analyze --basic --json` prints."""

    schema: int
    block_size: int
    tail: str
    requests: int
    blocks: int
    distinct_blocks: int | None
    prefix_groups: int | None
    repeated_blocks: int | None
    reuse_ratio: float | None
    tokens: int
    hit_blocks: int | None
    hit_tokens: int | None
    block_hit_rate: float | None
    token_hit_rate: float | None
    input_length: Distribution
    context_length: Distribution | None
    unique_prompt_length: Distribution | None
    output_length: Distribution
    request_hit_rate: Distribution | None
    unknown: dict[str, str]


class AnalyzeFile(BasicsFile, total=False):
    """What `kvtrace analyze --json` prints; `--basic` leaves out these keys but `domains`, which some traces have."""

    reachable_hits: ReachableHitsDict
    popularity: Popularity | None
    sharing_by_depth: list[DepthBand] | None
    reuse_time_ms: Distribution | None
    reuse_distance: Distribution | None
    arrivals: Arrivals
    sessions: Sessions | None
    by_type: list[Group]
    hits_with_outputs: HitsDict | None
    kv_bytes_per_token: int | None
    working_set_bytes: int | None
    notes: list[str]
    by_block_size: list[BlockSize]
    domains: DomainsDict
    delivered: DeliveredDict
    measured_times: dict[str, Distribution]


class CurvePoint(HitsDict):
    """The hits at one capacity."""

    capacity: int
    capacity_tokens: int
    share: float
    exact: bool


class CurvePointFile(CurvePoint, total=False):
    """A point with what only some curves have: bytes with a model, errors with `--sample`."""

    capacity_bytes: int
    error: dict[str, float]


class CurveKeys(TypedDict):
    """What `kvtrace curve --json` prints of each trace."""

    schema: int
    block_size: int
    longest: int
    working_set: int
    kv_bytes_per_token: int | None
    sample: float | None
    points: list[CurvePointFile]
    unlimited: HitsDict
    least: dict[str, int]


class CurveFile(CurveKeys, total=False):
    """What `kvtrace curve --json` prints; only a trace with isolation domains has the last key."""

    domains: DomainsDict


class ComparedTrace(TypedDict):
    """One of the traces that were compared."""

    name: str
    requests: int
    block_size: int
    working_set: int
    duration_ms: float


class DistributionScore(TypedDict):
    """The distributions of one quantity in both traces."""

    score: float | None
    distance: float | None
    a: Distribution
    b: Distribution
    errors: dict[str, float | None]


class NumberScore(TypedDict):
    """One number of both traces."""

    score: float | None
    a: float | None
    b: float | None
    distance: float | None
    difference: float | None
    ratio: float | None


class CurveScore(TypedDict):
    """The hit curves of both traces."""

    score: float | None
    unit: Literal["blocks", "tokens", "share"]
    rate: str
    first: float | None
    last: float | None
    points: int
    distance: float | None
    at: float | None
    mean: float | None


class CompareFile(TypedDict):
    """What `kvtrace compare --json` prints."""

    schema: int
    a: ComparedTrace
    b: ComparedTrace
    sessions: Literal["recorded", "inferred"]
    notes: list[str]
    overall: float
    scores: dict[str, float | None]
    distributions: dict[str, DistributionScore]
    numbers: dict[str, NumberScore]
    curves: dict[str, CurveScore]
