"""What each request of a trace asks of a cache, as arrays: its path, an unhashed tail, and what its output adds.

The mode says how much of the truth is looked at:
block: each id is a full block. token: true lengths; a last, partial block is allocated but has no hash. grow: as token,
then the output's tokens but for the last are cached too, its full blocks under hashes that nobody else has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .._base.errors import InputError, UsageError
from ..trace.trace import Trace

MODES = ("block", "token", "grow")
MOST = (1 << 31) - 1  # block numbers are int32 in the compiled core


@dataclass(frozen=True, eq=False)
class Jobs:
    """One value a request in each array; block numbers are the trace's ids, and fresh ones above them."""

    trace: Trace
    mode: str
    ids: np.ndarray  # int32: all prompts' ids, end to end
    start: np.ndarray  # int64: where a request's path begins in ids
    full: np.ndarray  # int32: hashed blocks of its path
    tail: np.ndarray  # int8: 1 where one more block without a hash is allocated
    limit: np.ndarray  # int32: at most so many blocks may hit
    grown: np.ndarray  # int32: hashed blocks that the output adds
    grown_tail: np.ndarray  # int8: 1 where a block without a hash is left at the end
    fresh: np.ndarray  # int32: the first of the numbers of its grown blocks
    arrival: np.ndarray  # float64: ms
    blocks: int  # block numbers in all
    grows: bool

    def __len__(self) -> int:
        return len(self.full)

    @cached_property
    def most(self) -> np.ndarray:
        """Blocks that each request holds at once, at its greatest."""
        return self.full.astype(np.int64) + (self.grown + self.grown_tail if self.grows else self.tail)

    @cached_property
    def parent(self) -> np.ndarray:
        """int32: block -> the block before it, -1 = root."""
        before = np.empty_like(self.ids)
        before[1:] = self.ids[:-1]
        offsets = self.trace.offsets
        before[offsets[:-1][np.diff(offsets) > 0]] = -1
        parent = np.arange(-1, self.blocks - 1, dtype=np.int32)  # a grown block follows the one before it,
        parent[self.ids] = before
        last = (
            self.ids[np.minimum(self.start + np.maximum(self.full, 1) - 1, max(len(self.ids) - 1, 0))]
            if len(self.ids)
            else -1
        )
        firsts = self.grown > 0
        parent[self.fresh[firsts]] = np.where(self.full > 0, last, -1)[
            firsts
        ]  # the first of them the prompt's last full one
        return parent


def jobs(trace: Trace, mode: str = "block", recompute_last: bool = False) -> Jobs:
    """What a trace's requests ask for in a mode; with `recompute_last`, a prompt's last token is never a hit.

    UsageError for an unknown mode, InputError where ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> jobs(toy("0 1 2", "0 3"), recompute_last=True).limit
    array([2, 1], dtype=int32)
    """
    if mode not in MODES:
        raise UsageError(f"there is no mode {mode!r}. Try {', '.join(MODES)}.")
    trace.require_chained()
    if trace.distinct > MOST:
        raise InputError(
            f"{trace.distinct:,} distinct blocks are more than a simulation can number. Try a part of the trace."
        )
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
    blocks = trace.distinct + int(grown.sum())
    if blocks > MOST:
        raise InputError(
            f"{blocks:,} blocks with those of outputs are more than a simulation can number. Try --mode token."
        )
    return Jobs(
        trace=trace, mode=mode, ids=trace.hash_ids.astype(np.int32, copy=False),
        start=trace.offsets[:-1].astype(np.int64),
        full=full.astype(np.int32), tail=tail.astype(np.int8), limit=np.minimum(limit, full).astype(np.int32),
        grown=grown.astype(np.int32), grown_tail=grown_tail.astype(np.int8),
        fresh=(trace.distinct + np.cumsum(grown) - grown).astype(np.int32), arrival=trace.timestamp.astype(np.float64),
        blocks=blocks, grows=mode == "grow",
    )  # fmt: skip
