"""The blocks of prompts: their sizes, their parents, and their ranks among the parent's children."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..._base.errors import InputError, UsageError
from ..._base.offsets import offsets_of
from ...trace.stated import with_whole_prompts
from ...trace.trace import Trace


@dataclass(frozen=True, eq=False)
class PromptBlocks:
    """The blocks of some prompts, with all data that their texts depend on."""

    ids: np.ndarray  # block reference -> id, prompts end to end
    offsets: np.ndarray  # prompt r is ids[offsets[r]:offsets[r + 1]]
    lengths: np.ndarray  # prompt -> tokens
    block_size: int
    size: np.ndarray  # id -> tokens
    parent: np.ndarray  # id -> the id before it, -1 = none; all -1 if the ids do not form a forest
    rank: np.ndarray  # id -> rank among its parent's children, from 0; short blocks first
    siblings: np.ndarray  # id -> number of its parent's children, itself included

    @classmethod
    def of_trace(cls, trace: Trace) -> PromptBlocks:
        """The blocks of a trace's prompts. If the trace has no tail blocks, each prompt gets a tail of its own."""
        trace = with_whole_prompts(trace)
        return cls.of(trace.hash_ids, trace.offsets, trace.input_length, trace.block_size)

    @classmethod
    def of(cls, ids, offsets, lengths, block_size: int, *, names=None) -> PromptBlocks:
        """The blocks of ids 0, 1, 2, ...; `names` are the ids in error messages.

        >>> from kvtrace.trace.building import toy
        >>> blocks = PromptBlocks.of_trace(toy("0 1", "0 2", "3", block_size=4))
        >>> blocks.parent.tolist(), blocks.rank.tolist(), blocks.siblings.tolist()
        ([-1, 0, 0, -1], [0, 0, 1, 1], [2, 2, 2, 2])
        """
        if block_size < 1:
            raise UsageError(f"block size is {block_size}; it must be a whole number of tokens, at least 1.")
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
    """Whether rows have ids for full blocks only; InputError if the number of ids does not fit the lengths."""
    counts = np.diff(offsets)
    if len(lengths) and lengths.min() < 0:
        raise InputError(f"row {int(np.argmin(lengths))}: its length is negative.")
    with_tail = -(-lengths // block_size)
    if (counts == with_tail).all():
        return False
    if (counts == lengths // block_size).all():
        return True
    row = int(np.flatnonzero(counts != with_tail)[0])
    raise InputError(
        f"row {row}: {counts[row]:,} ids for {lengths[row]:,} tokens; at block size {block_size} there should be "
        f"{with_tail[row]:,}. Try another block size."
    )


def _with_own_tails(ids, offsets, has_tail):
    """The ids with a new id at the end of each row that has a tail."""
    new_ids = (int(ids.max()) + 1 if len(ids) else 0) + np.arange(int(has_tail.sum()))
    with_tails = np.insert(ids, offsets[1:][has_tail], new_ids)
    return with_tails, offsets + offsets_of(has_tail)


def _sizes(ids, offsets, lengths, block_size, names):
    """Id -> tokens; InputError if an id has two sizes."""
    tokens = np.full(len(ids), block_size, dtype=np.int64)  # block reference -> tokens
    rest = lengths % block_size
    tokens[offsets[1:][rest > 0] - 1] = rest[rest > 0]
    size = np.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=np.int64)
    size[ids] = tokens
    if (wrong := np.flatnonzero(size[ids] != tokens)).size:
        first = int(wrong[0])
        second = int(np.flatnonzero((ids == ids[first]) & (tokens != tokens[first]))[0])
        rows = np.searchsorted(offsets, [first, second], side="right") - 1
        raise InputError(
            f"row {rows[1]}: id {names[second]} has {tokens[second]:,} tokens, but in row {rows[0]} it has "
            f"{tokens[first]:,}. Check the block size, and that the lengths count the tokens of the ids."
        )
    return size


def _parents(ids, offsets, distinct):
    """Id -> the id before it. All -1 if an id follows two different ids: then any two ids can be siblings."""
    before = np.full(len(ids), -1, dtype=np.int64)
    before[1:] = ids[:-1]
    before[offsets[:-1][np.diff(offsets) > 0]] = -1
    parent = np.full(distinct, -1, dtype=np.int64)
    parent[ids] = before
    return parent if (parent[ids] == before).all() else np.full(distinct, -1, dtype=np.int64)


def _ranks(parent, size):
    """(rank, siblings) of each id. Short blocks come first, since they have the fewest tokens to differ in."""
    order = np.lexsort((np.arange(len(parent)), size, parent))
    first = np.flatnonzero(np.diff(parent[order], prepend=-2))  # first sibling of each family
    family = np.diff(first, append=len(order))
    rank, siblings = np.empty_like(parent), np.empty_like(parent)
    rank[order] = np.arange(len(order)) - np.repeat(first, family)
    siblings[order] = np.repeat(family, family)
    return rank, siblings
