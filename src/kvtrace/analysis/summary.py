"""All statistics of a trace: Trace -> Summary. docs/analysis/analyze.md defines every figure.

`basics` computes the statistics of datagen and AIPerf; `analyze` adds the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.errors import InputError, UnknownError
from .._base.results import Described, column
from .._base.step_work import report_work
from .._base.tables import TextTable
from ..trace.columns import STATED, require_trace
from ..trace.domains import in_domains
from ..trace.hits import RATES, Hits, count_hits, leading_tokens, unlimited_hits
from ..trace.normalise import NEWEST_FIRST, Fixes
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, SESSIONS, TIMES, knows, remarks, unknown
from .arrivals import Arrivals, arrival_statistics
from .block_sizes import BlockSizeHits
from .delivered import Delivered, delivered_hits
from .distribution import Distribution, DistributionFrames
from .reuse import BlockUses, DepthBand, Popularity, ReuseAccumulator, block_popularity, count_uses, sharing_by_depth
from .session_statistics import UNKNOWN, RequestGroup, SessionStatistics, by_type, known_lengths, session_statistics
from .summary_tables import (
    RATE_NOTES,
    TABLE_ROWS,
    arrival_rows,
    depth_table,
    distribution_table,
    group_table,
    measured_table,
    measured_times,
    pair_table,
    scaled,
    session_tables,
)

SCHEMA = 2  # version of the keys of to_dict


HIT_FIGURES = dict.fromkeys(("hit_blocks", "hit_tokens", "block_hit_rate", "token_hit_rate"), column())


@dataclass(frozen=True)
class Sharing(Described):
    """What prompts share: blocks, and the hits of a cache that never evicts."""

    distinct_blocks: int  # AIPerf's unique prefixes
    prefix_groups: int  # first blocks of at least two requests
    repeated_blocks: int  # references to blocks that occur more than once in the whole trace
    reuse_ratio: float  # of these to all references
    hits: Hits = field(
        metadata=column(spread=HIT_FIGURES, value=lambda hits: {name: getattr(hits, name) for name in HIT_FIGURES})
    )
    context_length: Distribution
    unique_prompt_length: Distribution
    request_hit_rate: Distribution


class NeedsSharing:
    """The figures of a result that need shared prefixes; reading one is an UnknownError where these are unknown."""

    sharing: Sharing | None
    unknown: Mapping[str, str]

    def _shared(self, figure: str) -> Sharing:
        if self.sharing is None:
            raise UnknownError(f"{figure} is unknown: {self.unknown[PREFIXES]}")
        return self.sharing

    @property
    def distinct_blocks(self) -> int:
        """AIPerf's unique prefixes."""
        return self._shared("the number of distinct blocks").distinct_blocks

    @property
    def hits(self) -> Hits:
        """The hits of a cache that never evicts."""
        return self._shared("the hit rate").hits

    @property
    def prefix_groups(self) -> int:
        """First blocks of at least two requests."""
        return self._shared("the number of prefix groups").prefix_groups

    @property
    def repeated_blocks(self) -> int:
        """References to blocks that occur more than once in the whole trace."""
        return self._shared("the number of repeated blocks").repeated_blocks

    @property
    def context_length(self) -> Distribution:
        """Tokens of each prompt in blocks that occur more than once."""
        return self._shared("the context length").context_length

    @property
    def unique_prompt_length(self) -> Distribution:
        """Tokens of each prompt that are not context."""
        return self._shared("the unique prompt length").unique_prompt_length

    @property
    def request_hit_rate(self) -> Distribution:
        """The hit rate of each request without eviction."""
        return self._shared("the hit rate of each request").request_hit_rate


@dataclass(frozen=True, repr=False)
class Basics(Described, NeedsSharing, DistributionFrames):
    """The statistics of `datagen analyze` and `aiperf analyze-trace`. What is unknown is null in JSON."""

    _schema = SCHEMA
    _keys = (
        "block_size", "tail", "requests", "blocks", "tokens", "sharing", "input_length", "output_length", "unknown",
    )  # fmt: skip

    block_size: int
    tail: str
    requests: int
    blocks: int
    tokens: int  # of the prompts
    input_length: Distribution
    output_length: Distribution  # of the requests whose output length is known
    sharing: Sharing | None = field(metadata=column(spread=Sharing))  # None if shared prefixes are unknown
    unknown: Mapping[str, str] = field(default_factory=dict)  # what the trace does not know -> a sentence
    by_block_size: list[BlockSizeHits] = field(default_factory=list)  # as in a Summary
    reachable_hits: Any = None

    @property
    def reuse_ratio(self) -> float:
        """References to blocks that occur more than once / all references: AIPerf's reuse ratio."""
        return self._shared("the number of repeated blocks").reuse_ratio

    def _headline(self) -> str:
        blocks = f"{self.requests:,} requests, {self.blocks:,} blocks"
        if self.sharing is None:
            return f"{blocks}, hit rates unknown"
        rates = f"block_hit_rate={self.hits.block_hit_rate:.4f}, token_hit_rate={self.hits.token_hit_rate:.4f}"
        return f"{blocks}, {self.distinct_blocks:,} distinct, {rates}"

    def distributions(self) -> dict[str, Distribution]:
        """The five distributions by name; two if shared prefixes are unknown."""
        names = {"input_length", "output_length"} if self.sharing is None else DISTRIBUTIONS
        return {name: getattr(self, name) for name in DISTRIBUTIONS if name in names}

    def tables(self) -> Iterator[TextTable]:
        """Counts, the three hit rates, and the statistics of datagen and AIPerf."""
        sharing = self.sharing
        shared = [UNKNOWN] * 3
        if sharing is not None:
            shared = [f"{sharing.distinct_blocks:,}", f"{sharing.prefix_groups:,}", f"{self.reuse_ratio:.4f}"]
        yield pair_table("Trace", [
            ("requests", f"{self.requests:,}", ""),
            ("blocks", f"{self.blocks:,}", "in prompts"),
            ("distinct blocks", shared[0], "the working set; AIPerf's unique prefixes"),
            ("prefix groups", shared[1], "first blocks of at least two requests"),
            ("reuse ratio", shared[2], "references to blocks that occur more than once"),
            *([("sessions", UNKNOWN, self.unknown[SESSIONS])] if SESSIONS in self.unknown else []),
        ])  # fmt: skip
        rates = {rate: f"{getattr(sharing.hits, rate):.4f}" if sharing else UNKNOWN for rate in RATES}
        rows = [(RATES[rate].heading, text, RATE_NOTES[rate]) for rate, text in rates.items()]
        yield pair_table("Hit rates without eviction", rows)
        distributions = self.distributions()
        yield distribution_table(
            "Per request", {name: distributions[key] for name, key in TABLE_ROWS.items() if key in distributions}
        )


DISTRIBUTIONS = ("input_length", "context_length", "unique_prompt_length", "output_length", "request_hit_rate")


def basics(trace: Trace, quantiles: Sequence[float] = (), *, uses: BlockUses | None = None) -> Basics:
    """Compute the statistics of datagen and AIPerf.

    Args:
        trace: The trace.
        quantiles: Extra quantiles of each distribution, from 0 to 1.
        uses: The uses of the blocks, if they are known already.

    Returns:
        Counts, the three hit rates without eviction, and five distributions.

    Raises:
        InputError: The trace has no requests or no blocks, or its ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> statistics = basics(toy("0 1 2", "0 1 3", "4"))
    >>> statistics.context_length.mean, statistics.unique_prompt_length.max, statistics.prefix_groups
    (1.3333333333333333, 1.0, 1)
    """
    trace = in_domains(trace)
    require_requests(trace)
    sharing = _sharing(trace, quantiles, uses) if knows(trace, trace.meta, PREFIXES) else None
    return Basics(
        block_size=trace.block_size, tail=trace.tail, requests=len(trace), blocks=int(trace.offsets[-1]),
        tokens=int(trace.input_length.sum()), input_length=Distribution.of(trace.input_length, quantiles),
        output_length=known_lengths(trace.output_length, quantiles),
        sharing=sharing, unknown=unknown(trace, trace.meta),
    )  # fmt: skip


def require_requests(trace: Trace) -> None:
    """InputError if the trace has no requests."""
    if not len(trace):
        raise InputError("the trace has no requests.")


def _sharing(trace: Trace, quantiles: Sequence[float], uses: BlockUses | None) -> Sharing:
    """What the prompts of a trace share."""
    uses = uses or _require_uses(trace)
    blocks, context = trace.prompt_blocks, _context_length(trace, uses)
    has_blocks = blocks > 0
    first_blocks = trace.first_blocks[uses.hit_blocks[has_blocks] == 0]  # each first block, once
    repeated = int(uses.repeated_blocks.sum())
    return Sharing(
        distinct_blocks=int(np.count_nonzero(uses.uses)),
        prefix_groups=int((uses.uses[first_blocks] > 1).sum()),
        repeated_blocks=repeated,
        reuse_ratio=repeated / int(trace.offsets[-1]) if trace.offsets[-1] else 0.0,
        hits=count_hits(trace, uses.hit_blocks),
        context_length=Distribution.of(context, quantiles),
        unique_prompt_length=Distribution.of(trace.input_length - context, quantiles),
        request_hit_rate=Distribution.of(uses.hit_blocks[has_blocks] / blocks[has_blocks], quantiles),
    )


def _require_uses(trace) -> BlockUses:
    """Count the uses; InputError if the trace has no blocks."""
    if not trace.offsets[-1]:
        raise InputError("the trace has no hash_ids, so its reuse is unknown.")
    return count_uses(trace)


def _context_length(trace, uses) -> np.ndarray:
    """Tokens of each prompt in blocks that occur more than once; the input length if all of its blocks do."""
    blocks = uses.repeated_blocks
    if trace.tail == STATED:  # the blocks may be fewer than the prompt's tokens fill, or more
        return leading_tokens(trace, blocks)
    return np.where(blocks == trace.prompt_blocks, trace.input_length, blocks * trace.block_size)


@dataclass(frozen=True)
class Reuse(Described):
    """How blocks are used again."""

    popularity: Popularity
    sharing_by_depth: list[DepthBand]
    reuse_time_ms: Distribution  # from a use of a block to its next, over all hits without eviction
    reuse_distance: Distribution  # distinct blocks used between the two uses
    hits_with_outputs: Hits | None  # with the blocks of outputs resident too; None without output blocks

    def tables(self, distinct_blocks: int) -> Iterator[TextTable]:
        """Reuse, popularity, and sharing by depth."""
        yield distribution_table("Reuse", {
            "Reuse time (s)": scaled(self.reuse_time_ms, 1000),
            "Reuse distance (blocks)": self.reuse_distance,
        })  # fmt: skip
        popular = self.popularity
        yield pair_table("Popularity", [
            ("blocks used again", f"{popular.reused_blocks:,}", f"of {distinct_blocks:,}"),
            ("most used block", f"{popular.most_used:,}", "uses"),
            *((f"top {top:.0%} of blocks", f"{part:.1%}", "of all reuse") for top, part in popular.top_share.items()),
        ])  # fmt: skip
        yield depth_table(self.sharing_by_depth)


@dataclass(frozen=True, repr=False)
class Summary(Described, DistributionFrames):
    """All statistics of a trace, as `kvtrace analyze` prints them."""

    _keys = (
        "basics", "reuse", "arrivals", "sessions", "by_type", "kv_bytes_per_token", "working_set_bytes", "notes",
        "delivered", "measured_times",
    )  # fmt: skip

    basics: Basics = field(metadata=column(spread=Basics))
    reuse: Reuse | None = field(metadata=column(spread=Reuse))  # None if shared prefixes are unknown
    arrivals: Arrivals
    sessions: SessionStatistics | None
    by_type: list[RequestGroup]
    kv_bytes_per_token: int | None
    notes: list[str] = field(default_factory=list)  # sentences on the order of the rows, and on delivered hits
    delivered: Delivered | None = field(  # the hits of the service; None without cached_tokens
        default=None, metadata=column(optional=True)
    )
    measured_times: dict[str, Distribution] = field(  # column -> ms, of those that the trace has
        default_factory=dict, metadata=column(optional=True)
    )
    by_block_size: list[BlockSizeHits] = field(default_factory=list)  # of `fold`; JSON has them beside the summary
    reachable_hits: Any = None  # serving's ReachableHits, of `engine`; JSON has them beside the summary

    @property
    def working_set_bytes(self) -> int | None:
        """Bytes of KV cache of all distinct blocks, each counted as a full block; None without a model."""
        if self.kv_bytes_per_token is None or self.basics.sharing is None:
            return None
        return self.kv_bytes_per_token * self.basics.distinct_blocks * self.basics.block_size

    @property
    def unknown(self) -> Mapping[str, str]:
        """What the trace does not know, each with a sentence that says what makes it known."""
        return self.basics.unknown

    def _reused(self, figure: str) -> Reuse:
        if self.reuse is None:
            raise UnknownError(f"{figure} is unknown: {self.unknown[PREFIXES]}")
        return self.reuse

    @property
    def popularity(self) -> Popularity:
        """How often blocks are used."""
        return self._reused("the popularity of blocks").popularity

    @property
    def sharing_by_depth(self) -> list[DepthBand]:
        """The shared blocks at each depth of prompts."""
        return self._reused("sharing by depth").sharing_by_depth

    @property
    def reuse_time_ms(self) -> Distribution:
        """From a use of a block to its next, over all hits without eviction."""
        return self._reused("the reuse time").reuse_time_ms

    @property
    def reuse_distance(self) -> Distribution:
        """Distinct blocks used between a use of a block and its next."""
        return self._reused("the reuse distance").reuse_distance

    @property
    def hits_with_outputs(self) -> Hits | None:
        """The hits with the blocks of outputs resident too; None without output blocks."""
        return self._reused("the hit rate with outputs").hits_with_outputs

    def _headline(self) -> str:
        sessions = f", {self.sessions.sessions:,} sessions" if self.sessions else ""
        return f"{self.basics._headline()}, duration_s={self.arrivals.duration_ms / 1000:,.6g}{sessions}"

    def distributions(self) -> dict[str, Distribution]:
        """All distributions by name."""
        distributions = self.basics.distributions()
        if self.reuse is not None:
            distributions |= {"reuse_time_ms": self.reuse_time_ms, "reuse_distance": self.reuse_distance}
        distributions["gap_ms"] = self.arrivals.gap_ms
        if self.sessions:
            distributions |= self.sessions.distributions()
        return distributions | self.measured_times

    def tables(self) -> Iterator[TextTable]:
        """All statistics, one table for each section."""
        yield from self.basics.tables()
        if self.reuse is not None:
            yield from self.reuse.tables(self.basics.distinct_blocks)
        yield pair_table("Arrivals", list(arrival_rows(self.arrivals)))
        if self.sessions:
            yield from session_tables(self.sessions)
            yield group_table("By turn", "turn", self.sessions.by_turn)
        if self.by_type:
            yield group_table("By type", "type", self.by_type)
        if self.reuse is not None and self.hits_with_outputs:
            hits, note = self.hits_with_outputs, "with the blocks of outputs resident too"
            rows = [(each.heading, each.cell(getattr(hits, rate)), note) for rate, each in RATES.items()]
            yield pair_table("Outputs", rows)
        if self.delivered:
            yield from self.delivered.tables()
        if self.measured_times:
            yield measured_table(self.measured_times, self.basics.requests)
        if self.kv_bytes_per_token and self.working_set_bytes:
            gib = self.working_set_bytes / 2**30
            yield pair_table("KV cache", [
                ("bytes per token", f"{self.kv_bytes_per_token:,}", "over all layers"),
                ("working set", f"{gib:,.2f}", "GiB for all distinct blocks"),
            ])  # fmt: skip


def analyze(
    trace: Trace,
    *,
    quantiles: Sequence[float] = (),
    ms_per_token: float = 30.0,
    kv_bytes_per_token: int | None = None,
) -> Summary:
    """Compute all statistics of a trace, in memory or streamed.

    Args:
        trace: The trace.
        quantiles: Extra quantiles of each distribution, from 0 to 1.
        ms_per_token: Decode time of an output token, for the mean concurrency.
        kv_bytes_per_token: Bytes of KV cache per token, for the size of the working set in bytes.

    Returns:
        The statistics; https://github.com/kvtrace/kvtrace/blob/main/docs/analysis/analyze.md defines each of them.

    Raises:
        InputError: The trace has no requests or no blocks, or its ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> summary = analyze(toy("0 1 2", "0 1 3", "4"))
    >>> summary.basics.hits.hit_blocks, summary.reuse_distance.max
    (2, 1.0)
    """
    require_trace(trace)
    fixes, trace = trace.fixes, in_domains(trace)
    require_requests(trace)
    uses = _require_uses(trace) if knows(trace, trace.meta, PREFIXES) else None
    report_work(1, 6)
    reuse, hits = (None, None) if uses is None else (_reuse(trace, uses, quantiles), uses.hit_blocks)
    sessions = session_statistics(trace, hits, quantiles)
    delivered = None if trace.cached_tokens is None or hits is None else _delivered(trace, hits)
    notes = [*_order_notes(fixes, sessions), *(delivered.notes if delivered else _delivered_alone(trace))]
    return Summary(
        basics=basics(trace, quantiles, uses=uses), reuse=reuse,
        arrivals=arrival_statistics(trace, ms_per_token=ms_per_token, quantiles=quantiles),
        sessions=sessions, by_type=by_type(trace, hits), kv_bytes_per_token=kv_bytes_per_token,
        notes=[*notes, *remarks(trace, trace.meta, PREFIXES, OUTPUTS, TIMES).values()],
        delivered=delivered, measured_times=measured_times(trace, quantiles),
    )  # fmt: skip


def _reuse(trace: Trace, uses: BlockUses, quantiles: Sequence[float]) -> Reuse:
    """How the blocks of a trace are used again."""
    reuse = ReuseAccumulator(trace)
    for rows, piece in trace.pieces():
        reuse.add(piece)
        report_work((rows.stop - rows.start) / 6, len(trace))
    times = reuse.times(quantiles)
    report_work(1, 6)
    distances = reuse.distances(quantiles)
    report_work(1, 6)
    outputs = count_hits(trace, unlimited_hits(trace, outputs=True)) if trace.has_output_blocks else None
    return Reuse(block_popularity(trace, uses), sharing_by_depth(trace, uses), times, distances, outputs)


def _delivered(trace: Trace, hit_blocks: np.ndarray) -> Delivered:
    """The hits of the service beside those that were possible, with outputs where the trace has their blocks."""
    possible = unlimited_hits(trace, outputs=True) if trace.has_output_blocks else hit_blocks
    return delivered_hits(trace, hit_blocks=possible)


def _delivered_alone(trace: Trace) -> Iterator[str]:
    """A sentence on the hits of a service whose possible hits are unknown."""
    if trace.cached_tokens is None:
        return
    is_stated = trace.cached_tokens >= 0
    delivered, tokens = int(trace.cached_tokens[is_stated].sum()), int(trace.input_length[is_stated].sum())
    share = f" ({delivered / tokens:.1%})" if tokens else ""
    yield (
        f"The service took {delivered:,} of {tokens:,} prompt tokens{share} from its cache, in the "
        f"{np.count_nonzero(is_stated):,} requests whose cached_tokens it states. What was possible is unknown."
    )


def _order_notes(fixes: Fixes, sessions: SessionStatistics | None) -> Iterator[str]:
    """Sentences for rows in reverse order: by their times, or by contexts that shrink from turn to turn."""
    if fixes.is_reversed:
        yield f"The rows came {NEWEST_FIRST} and were sorted by time."
    if sessions and sessions.growth.count >= MIN_TURNS and (sessions.growth.p75 or 0) < 0:
        yield (
            "The context shrinks in at least three quarters of the turns, but sessions grow: the times may run "
            "backwards. Check the order of the log and the column of its times."
        )


MIN_TURNS = 10  # fewer tell nothing
