"""What the gauge shows at one moment: counts and hit rates since the start, in the last window, and decayed.

All counts are numbers of blocks, tokens or requests of prompts; nothing here is of one request.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = 1  # version of the keys of to_dict
GIB = 1 << 30
Cause = Literal["hit", "evicted", "first_use"]


@dataclass(frozen=True)
class LiveHits:
    """Hits of a cache, of the prompts of some requests. A rate is None if these have no blocks.

    The counts are whole numbers where they are exact. They are estimates beyond the reach of the near table, and
    weighted sums where requests decay.
    """

    hit_blocks: float
    hit_tokens: float
    request_hits: float  # sum over requests of hit blocks / blocks
    block_hit_rate: float | None
    token_hit_rate: float | None
    request_hit_rate: float | None


@dataclass(frozen=True)
class CapacityHits(LiveHits):
    """Hits of an LRU cache of one capacity, one request at a time."""

    factor: float  # capacity / `Traffic.curve_of`
    capacity_blocks: int


@dataclass(frozen=True)
class DeliveredTokens:
    """What the service took from its cache, over the requests that state their cached tokens."""

    requests: float
    prompt_tokens: float
    cached_tokens: float
    possible_tokens: float  # of these requests, in a cache that never evicts

    @property
    def token_hit_rate(self) -> float | None:
        """Cached tokens / prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True)
class Traffic:
    """The requests of one span of time: all since the start, those of the last window, or all with decaying weights."""

    requests: float
    requests_with_blocks: float
    blocks: float
    prompt_tokens: float
    possible: LiveHits  # of a cache that never evicts
    curve: tuple[CapacityHits, ...]
    curve_of: Literal["capacity", "working_set"]  # what the factors of the curve multiply
    delivered: DeliveredTokens | None  # None: no request states its cached tokens
    blocks_for_90_percent: int | None  # smallest LRU capacity with 90 % of the possible hit tokens; None: no hits
    causes: dict[Cause, float]  # -> prompt tokens; empty if neither a capacity nor cached tokens are known
    causes_of: Literal["delivered", "capacity"] | None  # whose hits the causes explain
    working_set_blocks: int | None  # distinct blocks; None where requests decay


@dataclass(frozen=True)
class StoreCounts:
    """Blocks that engines stored, as their KV events count them. Such a source shows no requests."""

    first_stored: int
    stored_again: int  # after an eviction: a larger cache would have kept them
    removed: int


@dataclass(frozen=True)
class Precision:
    """How the figures were measured: exactly up to `exact_up_to_blocks`, from a sample of the blocks beyond."""

    sample: float  # share of the blocks in the far table; 0 = there is none
    near_blocks: int  # blocks in the near table, the most recent ones
    far_blocks: int  # blocks in the far table
    exact_up_to_blocks: int | None  # hits of smaller caches are exact; None: all are, nothing was dropped
    reach_blocks: int | None  # reuse beyond this distance counts as first use; None: no block was forgotten


@dataclass(frozen=True)
class Snapshot:
    """The figures of a gauge at one moment; `to_dict` has them for JSON."""

    now_s: float
    started_s: float  # when the figures began
    window_s: float
    half_life_s: float
    block_size: int  # tokens
    capacity_blocks: int | None  # of today's cache; None = not known
    kv_bytes_per_token: float | None  # None = no model is named
    since_start: Traffic
    window: Traffic
    decayed: Traffic
    stores: StoreCounts | None  # None: no source has KV events
    precision: Precision
    memory_bytes: int  # of the gauge's tables
    lengths_only: int = 0  # requests whose log has lengths only; with all of them rates are None

    def gib(self, blocks: float | None) -> float | None:
        """The KV cache of so many blocks in GiB; None without a model."""
        if blocks is None or self.kv_bytes_per_token is None:
            return None
        return blocks * self.block_size * self.kv_bytes_per_token / GIB

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of docs/capture/watch.md; `schema` is its version."""
        values = {"schema": SCHEMA} | asdict(self)
        for span in ("since_start", "window", "decayed"):
            traffic: Traffic = getattr(self, span)
            values[span]["curve"] = [
                asdict(point) | {"capacity_gib": self.gib(point.capacity_blocks)} for point in traffic.curve
            ]
            values[span]["working_set_gib"] = self.gib(traffic.working_set_blocks)
            values[span]["gib_for_90_percent"] = self.gib(traffic.blocks_for_90_percent)
            if traffic.delivered is not None:
                values[span]["delivered"]["token_hit_rate"] = traffic.delivered.token_hit_rate
        return values
