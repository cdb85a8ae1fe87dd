"""What each block of some prompts is: how many tokens, after which block, and which of that block's children."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..._base.errors import InputError, UsageError
from ...trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Blocks:
    """Prompts as blocks, each with all that its text depends on."""

    ids: np.ndarray  # block reference -> id, prompts end to end
    offsets: np.ndarray  # prompt r is ids[offsets[r]:offsets[r + 1]]
    lengths: np.ndarray  # prompt -> tokens
    block_size: int
    size: np.ndarray  # id -> tokens it holds
    parent: np.ndarray  # id -> the id before it, -1 = none; -1 everywhere where the ids form no forest
    rank: np.ndarray  # id -> its place among its parent's children, 0, 1, 2, ...: the shortest come first
    siblings: np.ndarray  # id -> children of its parent, itself included

    @classmethod
    def of_trace(cls, trace: Trace) -> Blocks:
        """The blocks of a trace's prompts; where its tails were dropped, each prompt gets one of its own."""
        return cls.of(trace.hash_ids, trace.offsets, trace.input_length, trace.block_size)

    @classmethod
    def of(cls, ids, offsets, lengths, block_size: int, *, names=None) -> Blocks:
        """Of ids 0, 1, 2, ... as a trace holds them; `names` are what messages call them.

        >>> from kvtrace.trace.building import toy
        >>> blocks = Blocks.of_trace(toy("0 1", "0 2", "3", block_size=4))
        >>> blocks.parent.tolist(), blocks.rank.tolist(), blocks.siblings.tolist()
        ([-1, 0, 0, -1], [0, 0, 1, 1], [2, 2, 2, 2])
        """
        if block_size < 1:
            raise UsageError(f"block size is {block_size}; it is a whole number of tokens, 1 or more.")
        names = ids if names is None else names
        if _tails_are_dropped(offsets, lengths, block_size):
            ids, offsets = _with_own_tails(ids, offsets, lengths % block_size > 0)
            names = ids
        size = _sizes(ids, offsets, lengths, block_size, names)
        parent = _parents(ids, offsets, len(size))
        rank, siblings = _ranks(parent, size)
        return cls(ids, offsets, lengths, block_size, size, parent, rank, siblings)

    def __len__(self) -> int:
        return len(self.lengths)


def _tails_are_dropped(offsets, lengths, block_size) -> bool:
    """Whether every row has an id for its full blocks only; InputError where rows are of neither kind."""
    found = np.diff(offsets)
    if len(lengths) and lengths.min() < 0:
        raise InputError(f"row {int(np.argmin(lengths))}: its length is negative.")
    kept = -(-lengths // block_size)
    if (found == kept).all():
        return False
    if (found == lengths // block_size).all():
        return True
    row = int(np.flatnonzero(found != kept)[0])
    raise InputError(
        f"row {row}: {found[row]:,} ids for {lengths[row]:,} tokens; at block size {block_size} that prompt has "
        f"{kept[row]:,}. Try another block size."
    )


def _with_own_tails(ids, offsets, has_tail):
    """The ids with a new one at the end of each row that has a tail."""
    fresh = (int(ids.max()) + 1 if len(ids) else 0) + np.arange(int(has_tail.sum()))
    longer = np.insert(ids, offsets[1:][has_tail], fresh)
    return longer, offsets + np.concatenate([[0], np.cumsum(has_tail)])


def _sizes(ids, offsets, lengths, block_size, names):
    """Tokens of each id; InputError where one has two sizes."""
    held = np.full(len(ids), block_size, dtype=np.int64)  # block reference -> tokens
    rest = lengths % block_size
    held[offsets[1:][rest > 0] - 1] = rest[rest > 0]
    size = np.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=np.int64)
    size[ids] = held
    if (wrong := np.flatnonzero(size[ids] != held)).size:
        place = int(wrong[0])
        other = int(np.flatnonzero((ids == ids[place]) & (held != held[place]))[0])
        rows = np.searchsorted(offsets, [place, other], side="right") - 1
        raise InputError(
            f"row {rows[1]}: id {names[other]} stands for {held[other]:,} tokens, in row {rows[0]} for "
            f"{held[place]:,}. An id has one size: check the block size, and that lengths count the tokens of the ids."
        )
    return size


def _parents(ids, offsets, distinct):
    """The id before each; -1 everywhere where an id follows two others: then any two can be siblings."""
    before = np.full(len(ids), -1, dtype=np.int64)
    before[1:] = ids[:-1]
    before[offsets[:-1][np.diff(offsets) > 0]] = -1
    parent = np.full(distinct, -1, dtype=np.int64)
    parent[ids] = before
    return parent if (parent[ids] == before).all() else np.full(distinct, -1, dtype=np.int64)


def _ranks(parent, size):
    """(rank, siblings) of each id; the shortest first, for they have the fewest tokens to differ in."""
    order = np.lexsort((np.arange(len(parent)), size, parent))
    first = np.flatnonzero(np.diff(parent[order], prepend=-2))  # where each family begins
    family = np.diff(first, append=len(order))
    rank, siblings = np.empty_like(parent), np.empty_like(parent)
    rank[order] = np.arange(len(order)) - np.repeat(first, family)
    siblings[order] = np.repeat(family, family)
    return rank, siblings
