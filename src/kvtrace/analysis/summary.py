"""What a trace is like: Trace -> Summary, by the definitions that docs/analysis/analyze.md gives.

The statistics of datagen and AIPerf with their definitions come first and alone with `basic`; the rest is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .._base.errors import InputError
from .._base.tables import TextTable
from ..trace.hits import Hits, count_hits, unlimited_hits
from ..trace.trace import Trace
from .arrivals import Arrivals, arrivals
from .block_uses import Uses, uses
from .distribution import Distribution
from .framed import Framed
from .popularity import Depth, Popularity, popularity, sharing_by_depth
from .reuse import Reuses
from .tables import RATES, TABLE_ROWS, arrival_rows, depth_table, distribution_table, group_table, pair_table, scaled
from .turns import Group, Sessions, by_type, sessions

SCHEMA = 1  # version of the keys of to_dict


@dataclass(frozen=True)
class Basics(Framed):
    """The statistics of `datagen analyze` and `aiperf analyze-trace`, counts first."""

    block_size: int
    tail: str
    requests: int
    blocks: int
    distinct_blocks: int  # AIPerf's unique prefixes
    hits: Hits  # of a cache that never evicts
    prefix_groups: int  # first blocks that at least two requests begin with
    repeated_blocks: int  # references to blocks that occur more than once in the whole trace
    input_length: Distribution
    context_length: Distribution
    unique_prompt_length: Distribution
    output_length: Distribution
    request_hit_rate: Distribution

    @property
    def reuse_ratio(self) -> float:
        """References to blocks that occur more than once / all references: AIPerf's reuse ratio."""
        return self.repeated_blocks / self.blocks if self.blocks else 0.0

    def distributions(self) -> dict[str, Distribution]:
        """The five distributions by name."""
        return {name: getattr(self, name) for name in DISTRIBUTIONS}

    def tables(self) -> Iterator[TextTable]:
        """Counts, the three hit rates, and the statistics of datagen and AIPerf."""
        yield pair_table("Trace", [
            ("requests", f"{self.requests:,}", ""),
            ("blocks", f"{self.blocks:,}", "in prompts"),
            ("distinct blocks", f"{self.distinct_blocks:,}", "the working set; AIPerf's unique prefixes"),
            ("prefix groups", f"{self.prefix_groups:,}", "first blocks that two requests or more begin with"),
            ("reuse ratio", f"{self.reuse_ratio:.4f}", "references to blocks that occur more than once"),
        ])  # fmt: skip
        yield pair_table(
            "Hit rates, nothing ever evicted", [(n, f"{getattr(self.hits, n):.4f}", note) for n, note in RATES]
        )
        yield distribution_table("Per request", {name: getattr(self, field) for name, field in TABLE_ROWS.items()})

    def to_dict(self) -> dict:
        """Keys as docs/analysis/analyze.md lists them; `schema` is their version."""
        hits = self.hits
        return {"schema": SCHEMA} | {name: getattr(self, name) for name in COUNTS} | {
            "reuse_ratio": self.reuse_ratio,
            "tokens": hits.tokens, "hit_blocks": hits.hit_blocks, "hit_tokens": hits.hit_tokens,
            "block_hit_rate": hits.block_hit_rate, "token_hit_rate": hits.token_hit_rate,
        } | {name: found.to_dict() for name, found in self.distributions().items()}  # fmt: skip


COUNTS = ("block_size", "tail", "requests", "blocks", "distinct_blocks", "prefix_groups", "repeated_blocks")
DISTRIBUTIONS = ("input_length", "context_length", "unique_prompt_length", "output_length", "request_hit_rate")


def basics(trace: Trace, quantiles: Sequence[float] = (), *, found: Uses | None = None) -> Basics:
    """Compute the statistics of a trace that datagen and AIPerf print.

    Args:
        trace: The trace.
        quantiles: Quantiles of each distribution beside its quartiles, from 0 to 1.
        found: The uses of the trace's blocks, where they are known already.

    Returns:
        Counts, the three hit rates without eviction, and five distributions.

    Raises:
        InputError: The trace has no requests or no blocks.

    >>> from kvtrace.trace.building import toy
    >>> found = basics(toy("0 1 2", "0 1 3", "4"))
    >>> found.context_length.mean, found.unique_prompt_length.max, found.prefix_groups
    (1.3333333333333333, 1.0, 1)
    """
    found = found or _uses(trace)
    blocks, context = trace.prompt_blocks, _context(trace, found)
    holding = blocks > 0
    fresh = trace.first_blocks[found.hit_blocks[holding] == 0]  # each first block, once
    return Basics(
        block_size=trace.block_size, tail=trace.tail, requests=len(trace),
        blocks=int(trace.offsets[-1]), distinct_blocks=int(np.count_nonzero(found.uses)),
        hits=count_hits(trace, found.hit_blocks),
        prefix_groups=int((found.uses[fresh] > 1).sum()),
        repeated_blocks=int(found.repeated_blocks.sum()),
        input_length=Distribution.of(trace.input_length, quantiles),
        context_length=Distribution.of(context, quantiles),
        unique_prompt_length=Distribution.of(trace.input_length - context, quantiles),
        output_length=Distribution.of(trace.output_length, quantiles),
        request_hit_rate=Distribution.of(found.hit_blocks[holding] / blocks[holding], quantiles),
    )  # fmt: skip


def _uses(trace) -> Uses:
    """The uses of a trace that has some."""
    if not len(trace):
        raise InputError("the trace holds no requests.")
    if not trace.offsets[-1]:
        raise InputError("the trace has no hash_ids, so nothing can be said of its reuse.")
    return uses(trace)


def _context(trace, found) -> np.ndarray:
    """Tokens of each prompt in blocks that occur more than once in the whole trace; all of it if all do."""
    blocks = found.repeated_blocks
    return np.where(blocks == trace.prompt_blocks, trace.input_length, blocks * trace.block_size)


@dataclass(frozen=True)
class Summary(Framed):
    """Everything that `kvtrace analyze` says of a trace."""

    basics: Basics
    popularity: Popularity
    sharing_by_depth: list[Depth]
    reuse_time_ms: Distribution  # from a block's use to its next, over all hits of a cache that never evicts
    reuse_distance: Distribution  # distinct blocks between the two
    arrivals: Arrivals
    sessions: Sessions | None
    by_type: list[Group]
    hits_with_outputs: Hits | None  # where blocks of outputs stay resident too; None without output blocks
    kv_bytes_per_token: int | None

    @property
    def working_set_bytes(self) -> int | None:
        """KV-cache bytes of all distinct blocks, each counted whole; None where no model is named."""
        tokens = self.basics.distinct_blocks * self.basics.block_size
        return None if self.kv_bytes_per_token is None else self.kv_bytes_per_token * tokens

    def distributions(self) -> dict[str, Distribution]:
        """Every distribution of the whole trace by name."""
        found = {**self.basics.distributions(), "reuse_time_ms": self.reuse_time_ms}
        found |= {"reuse_distance": self.reuse_distance, "gap_ms": self.arrivals.gap_ms}
        if self.sessions:
            found |= {name: getattr(self.sessions, name) for name in ("turns", "think_ms", "growth")}
        return found

    def tables(self) -> Iterator[TextTable]:
        """Everything, section by section."""
        yield from self.basics.tables()
        yield distribution_table("Reuse", {
            "Reuse time (s)": scaled(self.reuse_time_ms, 1000),
            "Reuse distance (blocks)": self.reuse_distance,
        })  # fmt: skip
        popular = self.popularity
        yield pair_table("Popularity", [
            ("blocks used again", f"{popular.reused_blocks:,}", f"of {self.basics.distinct_blocks:,}"),
            ("most used block", f"{popular.most_used:,}", "uses"),
            *((f"top {top:.0%} of blocks", f"{part:.1%}", "of all reuse") for top, part in popular.top_share.items()),
        ])  # fmt: skip
        yield depth_table(self.sharing_by_depth)
        yield pair_table("Arrivals", list(arrival_rows(self.arrivals)))
        if self.sessions:
            yield distribution_table("Conversations", {
                "Turns": self.sessions.turns,
                "Time to the next turn (s)": scaled(self.sessions.think_ms, 1000),
                "Context growth (tokens)": self.sessions.growth,
            })  # fmt: skip
            yield group_table("By turn", "turn", self.sessions.by_turn)
        if self.by_type:
            yield group_table("By type", "type", self.by_type)
        if self.hits_with_outputs:
            note = "where the blocks of outputs stay resident too"
            yield pair_table("Outputs", [(n, f"{getattr(self.hits_with_outputs, n):.4f}", note) for n, _ in RATES])
        if self.kv_bytes_per_token and self.working_set_bytes:
            gib = self.working_set_bytes / 2**30
            yield pair_table("KV cache", [
                ("bytes a token", f"{self.kv_bytes_per_token:,}", "over all layers"),
                ("working set", f"{gib:,.2f}", "GiB, to hold every distinct block"),
            ])  # fmt: skip

    def to_dict(self) -> dict:
        """Keys as docs/analysis/analyze.md lists them; `schema` is their version."""
        return self.basics.to_dict() | {
            "popularity": self.popularity.to_dict(),
            "sharing_by_depth": [band.to_dict() for band in self.sharing_by_depth],
            "reuse_time_ms": self.reuse_time_ms.to_dict(),
            "reuse_distance": self.reuse_distance.to_dict(),
            "arrivals": self.arrivals.to_dict(),
            "sessions": self.sessions and self.sessions.to_dict(),
            "by_type": [group.to_dict() for group in self.by_type],
            "hits_with_outputs": self.hits_with_outputs and self.hits_with_outputs.to_dict(),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "working_set_bytes": self.working_set_bytes,
        }  # fmt: skip


def analyze(
    trace: Trace,
    *,
    quantiles: Sequence[float] = (),
    ms_per_token: float = 30.0,
    kv_bytes_per_token: int | None = None,
) -> Summary:
    """Compute all statistics of a trace: lengths, hit rates, reuse, popularity, arrivals and conversations.

    Args:
        trace: The trace, in memory or read lazily.
        quantiles: Quantiles of each distribution beside its quartiles, from 0 to 1.
        ms_per_token: Time per output token, to estimate how many requests are active at once.
        kv_bytes_per_token: KV-cache bytes a token over all layers, for the working set in bytes.

    Returns:
        The statistics; docs/analysis/analyze.md defines each.

    Raises:
        InputError: The trace has no requests, no blocks, or ids that do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> found = analyze(toy("0 1 2", "0 1 3", "4"))
    >>> found.basics.hits.hit_blocks, found.reuse_distance.max
    (2, 1.0)
    """
    used = _uses(trace)
    reuses = Reuses(trace)
    for _, piece in trace.pieces():
        reuses.add(piece)
    return Summary(
        basics=basics(trace, quantiles, found=used),
        popularity=popularity(trace, used), sharing_by_depth=sharing_by_depth(trace, used),
        reuse_time_ms=reuses.times(quantiles), reuse_distance=reuses.distances(quantiles),
        arrivals=arrivals(trace, ms_per_token=ms_per_token, quantiles=quantiles),
        sessions=sessions(trace, used.hit_blocks, quantiles),
        by_type=by_type(trace, used.hit_blocks),
        hits_with_outputs=count_hits(trace, _hits_with_outputs(trace)) if trace.has_output_blocks else None,
        kv_bytes_per_token=kv_bytes_per_token,
    )  # fmt: skip


def _hits_with_outputs(trace) -> np.ndarray:
    """Hit blocks of each request when nothing is ever evicted, and outputs stay resident too."""
    hits, seen = np.empty(len(trace), dtype=np.int64), 0
    for rows, piece in trace.pieces():
        hits[rows] = unlimited_hits(piece, outputs=True, seen=seen)
        seen = max(seen, int(piece.hash_ids.max(initial=-1)) + 1)
        seen = seen if piece.output_ids is None else max(seen, int(piece.output_ids.max(initial=-1)) + 1)
    return hits
