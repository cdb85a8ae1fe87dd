"""What the requests of a trace ask of a cache, as arrays, when they are active, and what an optimum makes of them.

The mode sets how closely lengths are modelled:

block: each id is a full block. token: true lengths; a partial last block takes room and has no hash. grow: as token;
the output's tokens, except the last one, are cached too, and their full blocks have hashes that no other request has.

Where block counts are stated (`STATED` in trace/columns.py), token and grow add blocks of the request alone up to its
length.

The offline optimum (belady, one request at a time) works on runs of blocks: what one request uses next of the blocks
that another one used last, as the exact hit curve has them (analysis/reuse.py). A trace has far fewer runs than blocks,
and all capacities share them.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from .._base.arrays import in_first, offsets_of
from .._base.errors import InputError, UsageError, wrong_word
from .._base.units import in_milliseconds
from ..analysis.reuse import Segments, find_segments
from ..trace.building import with_whole_prompts
from ..trace.invariants import MEAN_OUTPUT, require_own_blocks
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, require_known
from .layout import Drafting


@dataclass(frozen=True, eq=False)
class Optimum:
    """The runs of a trace, sorted by the request that used them last.

    >>> from kvtrace.trace.building import toy
    >>> optimum = Optimum.of(toy("0 1", "2", "0 1"))
    >>> [optimum.hit_blocks(capacity).tolist() for capacity in (1, 2)]
    [[0, 0, 1], [0, 0, 2]]
    """

    next_row: np.ndarray  # run -> the request that uses its blocks next, int32
    blocks: np.ndarray  # run -> number of blocks, int32
    first: np.ndarray  # request -> its first run; the last entry is the number of runs

    @classmethod
    def of(cls, trace: Trace, segments: Segments | None = None) -> Optimum:
        """The runs of a trace; `segments` are those of `find_segments`, if they are known.

        Raises:
            InputError: The ids do not form a forest.
        """
        segments = segments or find_segments(trace)
        order = np.argsort(segments.last_row, kind="stable")
        return cls(
            segments.row[order].astype(np.int32),
            segments.blocks[order].astype(np.int32),
            offsets_of(np.bincount(segments.last_row, minlength=len(trace))),
        )

    def hit_blocks(self, capacity: int) -> np.ndarray:
        """Request -> hit blocks at a capacity in blocks, which counts idle blocks; int64."""
        from .core.pool import retained

        return retained(self.next_row, self.blocks, self.first, capacity).astype(np.int64)


@dataclass(frozen=True)
class Schedule:
    """When requests end.

    serial: each request ends before the next one arrives.
    concurrency: `value` requests are active at once; the oldest one ends before the next one arrives.
    open-loop: a request ends `value` milliseconds per output token after its arrival.
    """

    kind: str
    value: float = 1

    def __str__(self) -> str:
        return self.kind if self.kind == "serial" else f"{self.kind}:{self.value:g}"

    def ends(self, trace: Trace) -> np.ndarray | None:
        """The end of each request in ms, if the schedule is open-loop.

        >>> from kvtrace.trace.building import toy
        >>> parse_schedule("open-loop:30").ends(toy("0", "1", gap_ms=100)).tolist()
        [30.0, 130.0]
        """
        if self.kind != "open-loop":
            return None
        require_known(trace, trace.meta, "the end of each request (--schedule open-loop)", OUTPUTS)
        return trace.timestamp + self.value * trace.output_length


SERIAL = Schedule("serial")


def parse_schedule(text: str) -> Schedule:
    """Parse `serial`, `concurrency:N` or `open-loop:MS`; UsageError for any other text.

    >>> parse_schedule("concurrency:8")
    Schedule(kind='concurrency', value=8)
    >>> parse_schedule("open-loop:30ms")
    Schedule(kind='open-loop', value=30.0)
    """
    if text == "serial":
        return SERIAL
    if match := re.fullmatch(r"concurrency:([1-9]\d{0,8})", text):
        return Schedule("concurrency", int(match[1]))
    if text.startswith("open-loop:"):
        with contextlib.suppress(UsageError):
            per_token_ms = in_milliseconds(text.removeprefix("open-loop:"))
            if 0 <= per_token_ms < 1e9:
                return Schedule("open-loop", per_token_ms)
    raise UsageError(
        f"{text!r} is not a schedule. Try serial, concurrency:8 (requests) or open-loop:30 (ms per output token)."
    )


Mode = Literal["block", "token", "grow"]
MODES = ("block", "token", "grow")
MAX_BLOCKS = (1 << 31) - 1  # block numbers are int32 in the compiled core


@dataclass(frozen=True, eq=False)
class BlockDemand:
    """One value for each request in each array; block numbers are the trace's ids, then those of output blocks."""

    trace: Trace  # with whole prompts
    mode: Mode
    ids: np.ndarray  # int32: the ids of all prompts, end to end
    start: np.ndarray  # int64: the position in `ids` where the request's path begins
    full: np.ndarray  # int32: hashed blocks of its path
    tail: np.ndarray  # int8: further blocks that are allocated, without a hash: 1 at most without a drafter
    limit: np.ndarray  # int32: the upper limit of its hit blocks
    grown: np.ndarray  # int32: hashed blocks that the output adds
    grown_tail: np.ndarray  # int8: the blocks without a hash that are left at the end
    fresh: np.ndarray  # int32: the number of its first output block; the others follow
    arrival: np.ndarray  # float64: ms
    blocks: int  # block numbers in all
    grows: bool
    drafting: Drafting | None = None

    def __len__(self) -> int:
        return len(self.full)

    @cached_property
    def max_blocks(self) -> np.ndarray:
        """int64: request -> the largest number of blocks that it holds at once."""
        return self.full.astype(np.int64) + (self.grown + self.grown_tail if self.grows else self.tail)

    @cached_property
    def optimum(self) -> Optimum:
        """The runs of blocks between two uses, for the offline optimum."""
        return Optimum.of(self.trace)

    @cached_property
    def parent(self) -> np.ndarray:
        """int32: block -> the block before it, -1 = root."""
        before = np.empty_like(self.ids)
        before[1:] = self.ids[:-1]
        offsets = self.trace.offsets
        before[offsets[:-1][np.diff(offsets) > 0]] = -1
        parent = np.arange(-1, self.blocks - 1, dtype=np.int32)  # an output block follows the one before it;
        parent[self.ids] = before
        has_output = self.grown > 0
        parent[self.fresh[has_output]] = self._last_full[has_output]  # the first follows the last full prompt block
        return parent

    @property
    def _last_full(self) -> np.ndarray:
        """Request -> the last hashed block of its prompt, -1 = none."""
        if not len(self.ids):
            return np.full(len(self), -1)
        place = np.minimum(self.start + np.maximum(self.full, 1) - 1, len(self.ids) - 1)
        return np.where(self.full > 0, self.ids[place], -1)


def check_mode(mode: str) -> None:
    """Raise UsageError if the mode is unknown."""
    if mode not in MODES:
        raise wrong_word(mode, "a mode", MODES)


def block_demand(
    trace: Trace, mode: Mode = "block", recompute_last: bool = False, drafting: Drafting | None = None
) -> BlockDemand:
    """The block demand of a trace's requests in a mode.

    Args:
        trace: The trace.
        mode: "block", "token" or "grow".
        recompute_last: The last token of a prompt is always computed, so its block never hits.
        drafting: What a drafter changes; None = no drafter.

    Raises:
        UsageError: The mode is not one of MODES.
        UnknownError: Shared prefixes are unknown, or for "grow" output lengths.
        InputError: The ids do not form a forest, or there are more blocks than int32 can number.

    >>> from kvtrace.trace.building import toy
    >>> block_demand(toy("0 1 2", "0 3"), recompute_last=True).limit
    array([2, 1], dtype=int32)
    """
    check_mode(mode)
    require_known(trace, trace.meta, "the hit rate of a simulated cache", PREFIXES)
    if mode == "grow":
        require_known(trace, trace.meta, "what outputs add to a cache (--mode grow)", OUTPUTS)
    trace = trace.require_chained()
    if trace.distinct > MAX_BLOCKS:
        raise InputError(
            f"The trace has {trace.distinct:,} distinct blocks; a simulation supports {MAX_BLOCKS:,}. "
            "Simulate a part of the trace."
        )
    if mode != "block":
        trace = with_whole_prompts(trace)
    size, tokens, ids = trace.block_size, trace.input_length, trace.prompt_blocks
    nothing = np.zeros(len(trace), dtype=np.int64)
    if mode == "block":
        full, tail, limit = ids, nothing > 0, np.maximum(ids - recompute_last, 0)
    else:
        full, tail = tokens // size, tokens % size > 0
        limit = np.maximum(tokens - recompute_last, 0) // size
    grown, grown_tail = nothing, tail
    if mode == "grow":
        cached = tokens + np.maximum(trace.output_length - 1, 0)  # the last token is never fed back
        grown, grown_tail = cached // size - full, cached % size > 0
        require_own_blocks(trace.output_length, size, "outputs", MEAN_OUTPUT)
    blocks = trace.distinct + int(grown.sum())
    _require_numbers(blocks)
    demand = BlockDemand(
        trace=trace, mode=mode, ids=trace.hash_ids.astype(np.int32, copy=False),
        start=trace.offsets[:-1].astype(np.int64),
        full=full.astype(np.int32), tail=tail.astype(np.int8), limit=np.minimum(limit, full).astype(np.int32),
        grown=grown.astype(np.int32), grown_tail=grown_tail.astype(np.int8),
        fresh=(trace.distinct + np.cumsum(grown) - grown).astype(np.int32), arrival=trace.timestamp.astype(np.float64),
        blocks=blocks, grows=mode == "grow",
    )  # fmt: skip
    return demand if drafting is None else _with_drafter(demand, drafting)


def _with_drafter(demand: BlockDemand, drafting: Drafting) -> BlockDemand:
    """The demand beside a drafter: the names of blocks, and the blocks without a hash.

    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "0 3"), recompute_last=True, drafting=Drafting("lookahead"))
    >>> demand.full, demand.ids[demand.start[0] :][: demand.full[0]]
    (array([3, 2], dtype=int32), array([1, 2, 4], dtype=int32))
    """
    trace, size = demand.trace, demand.trace.block_size
    tokens = trace.prompt_blocks * size if demand.mode == "block" else trace.input_length
    cached = tokens + np.maximum(trace.output_length - 1, 0) if demand.grows else tokens
    if drafting.needs_next:
        pairs = drafting.rule == "bigram"  # of tokens with keys and values; vLLM also knows the last token of an output
        full, all_full = (np.maximum(part - pairs, 0) // size for part in (tokens, cached))
        demand = _named_by_next(demand, full, all_full, np.maximum(tokens - 1 - pairs, 0) // size)
    held, grown_held = (-(-(part + drafting.tokens) // size) * (part > 0) for part in (tokens, cached))
    tail, grown_tail = held - demand.full, grown_held - demand.full - demand.grown
    return replace(demand, drafting=drafting, tail=tail.astype(np.int8), grown_tail=grown_tail.astype(np.int8))


def _named_by_next(demand: BlockDemand, full: np.ndarray, all_full: np.ndarray, limit: np.ndarray) -> BlockDemand:
    """The demand with each block named by the one after it, which says what the prefix and its next token are.

    `full` are the hashed blocks of each prompt, `all_full` those of prompt and output. Where the trace has no name for
    what follows the last one of a prompt, such as its output, that block gets a name of its own.
    """
    trace, ids, start = demand.trace, demand.ids, demand.start + 1
    stated = np.minimum(full, np.maximum(trace.prompt_blocks - 1, 0))
    own = full - stated
    if own.any():
        is_stated, starts = in_first(stated, own), offsets_of(full)[:-1]
        ids = np.empty(len(is_stated), dtype=ids.dtype)
        ids[is_stated] = demand.ids[(np.arange(len(ids)) + np.repeat(start - starts, full))[is_stated]]
        ids[~is_stated] = trace.distinct + np.arange(int(own.sum()))
        start = starts.astype(np.int64)
    first, grown = trace.distinct + int(own.sum()), all_full - full
    blocks = first + int(grown.sum())
    _require_numbers(blocks)
    return replace(
        demand, ids=ids, start=start, full=full.astype(np.int32), limit=limit.astype(np.int32), blocks=blocks,
        grown=grown.astype(np.int32), fresh=(first + np.cumsum(grown) - grown).astype(np.int32),
    )  # fmt: skip


def _require_numbers(blocks: int) -> None:
    """Raise InputError for more blocks of prompts and outputs than int32 can number."""
    if blocks > MAX_BLOCKS:
        raise InputError(
            f"Prompts and outputs have {blocks:,} blocks; a simulation supports {MAX_BLOCKS:,}. Try --mode token."
        )
