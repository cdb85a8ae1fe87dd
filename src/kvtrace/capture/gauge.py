"""The gauge of live traffic: what a prefix cache could hit, what today's does, and what a larger one would.

It takes batches of lengths and keyed digests, the same as a recording, and keeps counts and tables of fixed size. It
computes a snapshot in about a millisecond, whatever the traffic was: counts and hit rates since the start, in the last
window, and decayed. All counts are numbers of blocks, tokens or requests of prompts; nothing here is of one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from .._base.errors import UsageError
from ..analysis.live_curve import NEAR_BLOCKS, SAMPLE, LiveCurve, Span, SpanCurve
from ..ingest.encoding import Batch

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
        """GiB of KV cache that a number of blocks takes; None without a model."""
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


FACTORS = (0.5, 1.0, 2.0, 4.0)  # of today's capacity
SHARES = (0.125, 0.25, 0.5, 1.0)  # of the working set, where no capacity is known


@dataclass(frozen=True)
class GaugeOptions:
    """What `kvtrace watch` measures."""

    capacity: str | None = None  # of today's cache, as `--capacity` has it; None = not known
    kv_bytes_per_token: int | None = None  # of the model; None = not known
    block_size: int | None = None  # what snapshots state before the first request; None = the default
    window_s: float = 3600.0  # length of the moving window
    half_life_s: float = 600.0  # in which the weight of a decaying request halves
    sample: float = SAMPLE  # share of the blocks that measures caches beyond the exact part


class Gauge:
    """Measures live traffic in fixed memory; the law is that of `kvtrace curve` (docs/capture/watch.md).

    Args:
        block_size: Tokens of a block.
        capacity_blocks: Capacity of today's cache in blocks; None = not known.
        factors: Capacities of the curve, as multiples of today's.
        window_s: Length of the moving window in seconds.
        half_life_s: Seconds in which the weight of a decaying request halves.
        near_blocks: Hits of caches up to this capacity are exact.
        sample: Share of the blocks that measures larger ones.
        kv_bytes_per_token: Of the model, to show capacities in GiB; None = not known.
        seed: Of the sample.

    Raises:
        UsageError: An option is not valid.

    >>> gauge = Gauge(16, capacity_blocks=2)
    >>> digests = np.array([[1, 0], [2, 0], [1, 0], [2, 0]], dtype=np.uint64)
    >>> lengths = np.array([32, 32])
    >>> gauge.add(Batch(time_ns=np.zeros(2), input_length=lengths, digests=digests, offsets=np.array([0, 2, 4])), 0.0)
    >>> window = gauge.snapshot(now_s=1.0).window
    >>> window.possible.token_hit_rate, window.causes
    (0.5, {'hit': 32.0, 'evicted': 0.0, 'first_use': 32.0})
    >>> [(point.factor, point.token_hit_rate) for point in window.curve]
    [(0.5, 0.25), (1.0, 0.5), (2.0, 0.5), (4.0, 0.5)]
    """

    def __init__(
        self,
        block_size: int,
        *,
        capacity_blocks: int | None = None,
        factors: Sequence[float] = FACTORS,
        window_s: float = 600.0,
        half_life_s: float = 3600.0,
        near_blocks: int = NEAR_BLOCKS,
        sample: float = SAMPLE,
        kv_bytes_per_token: float | None = None,
        seed: int = 0,
    ):
        if capacity_blocks is not None and capacity_blocks < 1:
            raise UsageError("the capacity must be at least 1 block.")
        if any(not factor > 0 for factor in factors):
            raise UsageError("the factors of the capacity must be above 0.")
        self.capacity_blocks, self.kv_bytes_per_token = capacity_blocks, kv_bytes_per_token
        self._factors = tuple(factors) if capacity_blocks is not None else SHARES
        self._curve = LiveCurve(
            block_size,
            near_blocks=near_blocks,
            sample=sample,
            window_s=window_s,
            half_life_s=half_life_s,
            capacities=[] if capacity_blocks is None else self._capacities(capacity_blocks),
            seed=seed,
        )
        self._stores: StoreCounts | None = None
        self._requests = self._lengths_only = 0  # since the start

    def add(self, batch: Batch, now_s: float) -> None:
        """Add the requests of a batch, in their order.

        Blocks of outputs do not count as uses: hits are those of prompts on earlier prompts, as in `kvtrace curve`.

        Args:
            batch: Its digests have one key with those of all other batches.
            now_s: The time of the batch in seconds; an earlier one than before counts as the last one.
        """
        self._requests += len(batch)
        self._lengths_only += batch.lengths_only
        digests = batch.digests
        if batch.domain is not None:  # domains share no blocks
            digests = digests ^ np.repeat(batch.domain, batch.prompts, axis=0)
        self._curve.add(digests, batch.offsets, batch.input_length, now_s, batch.cached_tokens)

    def set_stores(self, *, first_stored: int, stored_again: int, removed: int) -> None:
        """Take the blocks that engines stored and removed since the start, by their KV events."""
        self._stores = StoreCounts(first_stored, stored_again, removed)

    def snapshot(self, now_s: float) -> Snapshot:
        """The figures at this time, in seconds of the same clock as in `add`."""
        curve = self._curve
        curve.advance(now_s)
        return Snapshot(
            now_s=now_s,
            started_s=curve.started_s,
            window_s=curve.window_s,
            half_life_s=curve.half_life_s,
            block_size=curve.block_size,
            capacity_blocks=self.capacity_blocks,
            kv_bytes_per_token=self.kv_bytes_per_token,
            since_start=self._traffic("since_start"),
            window=self._traffic("window"),
            decayed=self._traffic("decayed"),
            stores=self._stores,
            precision=self._precision(),
            memory_bytes=curve.memory_bytes,
            lengths_only=self._lengths_only,
        )

    def _traffic(self, span: Span) -> Traffic:
        curve = self._curve.over(span)
        if self._lengths_only and self._lengths_only == self._requests:
            return self._unknown(curve)
        working_set = self._working_set(span, curve)
        whole = self.capacity_blocks or working_set or round(curve.blocks - curve.possible[0])
        points = self._points(curve, whole) if whole else ()
        delivered = None
        if curve.known_requests:
            delivered = DeliveredTokens(
                curve.known_requests, curve.known_tokens, curve.known_cached, curve.known_possible
            )
        causes_of, causes = self._causes(curve, delivered)
        return Traffic(
            requests=curve.requests,
            requests_with_blocks=curve.requests_with_blocks,
            blocks=curve.blocks,
            prompt_tokens=curve.tokens,
            possible=LiveHits(**_hits(curve.possible, curve)),
            curve=points,
            curve_of="working_set" if self.capacity_blocks is None else "capacity",
            delivered=delivered,
            blocks_for_90_percent=curve.least_capacity(0.9),
            causes=causes,
            causes_of=causes_of,
            working_set_blocks=working_set,
        )

    def _unknown(self, curve: SpanCurve) -> Traffic:
        """The traffic of logs that have lengths only: which prompts share a prefix is unknown."""
        return Traffic(
            requests=curve.requests, requests_with_blocks=curve.requests_with_blocks, blocks=curve.blocks,
            prompt_tokens=curve.tokens, possible=LiveHits(0.0, 0.0, 0.0, None, None, None), curve=(),
            curve_of="working_set" if self.capacity_blocks is None else "capacity", delivered=None,
            blocks_for_90_percent=None, causes={}, causes_of=None, working_set_blocks=None,
        )  # fmt: skip

    def _points(self, curve: SpanCurve, whole: int) -> tuple[CapacityHits, ...]:
        capacities = self._capacities(whole)
        return tuple(
            CapacityHits(**_hits(hits, curve), factor=factor, capacity_blocks=capacity)
            for factor, capacity, hits in zip(self._factors, capacities, curve.hits(capacities).T, strict=True)
        )

    def _capacities(self, whole: int) -> list[int]:
        return [max(1, round(factor * whole)) for factor in self._factors]

    def _working_set(self, span: Span, curve: SpanCurve) -> int | None:
        if span == "window":
            return self._curve.working_set()[0]
        return round(curve.blocks - curve.possible[0]) if span == "since_start" else None

    def _causes(self, curve: SpanCurve, delivered: DeliveredTokens | None):
        """Whose hits the causes explain, and the prompt tokens of each cause.

        Where cached tokens are known, hits are those of the service: a token that it had beyond what is possible counts
        as a hit, and lowers first use.
        """
        if delivered is not None:
            whole, possible, hit = delivered.prompt_tokens, delivered.possible_tokens, delivered.cached_tokens
        elif self.capacity_blocks is not None:
            whole, possible, hit = curve.tokens, curve.possible[1], curve.hits([self.capacity_blocks])[1, 0]
        else:
            return None, {}
        evicted = max(0.0, float(possible - hit))
        causes: dict[Cause, float] = {"hit": float(hit), "evicted": evicted, "first_use": float(whole - hit - evicted)}
        return "capacity" if delivered is None else "delivered", causes

    def _precision(self) -> Precision:
        near, far = self._curve.near, self._curve.far
        reach = None
        if far is None:
            reach = near.reach if near is not None and near.dropped else None
        elif far.dropped:
            reach = round(far.reach / self._curve.sample)
        return Precision(
            sample=self._curve.sample,
            near_blocks=0 if near is None else near.held,
            far_blocks=0 if far is None else far.held,
            exact_up_to_blocks=0 if near is None else near.reach if near.dropped else None,
            reach_blocks=reach,
        )


def _hits(hits: np.ndarray, curve: SpanCurve) -> dict[str, Any]:
    """The fields of LiveHits."""
    blocks, tokens, requests = hits.tolist()
    wholes = zip(("block", "token", "request"), hits.tolist(), curve.wholes.tolist(), strict=True)
    rates = {f"{name}_hit_rate": count / whole if whole else None for name, count, whole in wholes}
    return {"hit_blocks": blocks, "hit_tokens": tokens, "request_hits": requests} | rates
