"""The invariants of a trace's ids: they count by first appearance, form a forest, and have one block size each.

`check` lists all rows that break them. A Trace, which is made more often than it is wrong, asks `_native.forest`, which
finds the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._base.offsets import in_first, joined, offsets_of
from .._base.step_work import report_work
from .._native import numbering
from .columns import STATED, Columns
from .invariants import BrokenRule


def broken_id_rules(columns: Columns, block_size: int | None, tail: str, *, first_id: int = 0) -> Iterator[BrokenRule]:
    """The rules for ids, each with the rows that break it; without block size, sizes are not compared.

    >>> columns = Columns([0.0, 1.0], [2, 2], [1, 1], [0, 1, 2, 1], [0, 2, 4])
    >>> [rule.rule for rule in broken_id_rules(columns, 1, "kept") if len(rule.rows)]
    ['chains']
    """
    walk = _Walk(columns, None if tail == STATED else block_size)
    report_work(1, 3)
    if len(walk.ids):
        yield _numbering(walk, first_id)
        report_work(1, 3)
        yield _chains(walk)
        if block_size is not None and tail != STATED:  # stated blocks are full ones
            yield from _block_sizes(walk, columns, block_size, tail)


class _Walk:
    """All block references in the order of numbering: each row's prompt, then its output."""

    def __init__(self, columns: Columns, block_size: int | None):
        prompt, output = np.diff(columns.offsets), np.zeros(len(columns), dtype=np.int64)
        self.ids, self.row = columns.hash_ids, np.repeat(np.arange(len(columns)), prompt)
        self.place = _counting(prompt)  # of a block in its prompt, or in prompt and output together
        self.is_output = np.zeros(len(self.ids), dtype=bool)
        if columns.output_ids is not None and columns.output_offsets is not None:
            output = np.diff(columns.output_offsets)
            full = np.maximum(columns.input_length // block_size, 0) if block_size else prompt
            self.ids = joined((self.ids, prompt), (columns.output_ids, output))
            self.place = joined((self.place, prompt), (_counting(output) + np.repeat(full, output), output))
            self.is_output = ~in_first(prompt, output)
            self.row = np.repeat(np.arange(len(columns)), prompt + output)
        self.starts = offsets_of(prompt + output)
        self.number, self.distinct = numbering.renumber(self.ids)

    def rows(self, unreadable: np.ndarray) -> np.ndarray:
        """The rows of the marked references."""
        return np.unique(self.row[unreadable])

    def at_first(self, values: np.ndarray) -> np.ndarray:
        """For each reference, the value at the first appearance of its id."""
        first = np.empty(self.distinct, dtype=np.int64)
        first[self.number[::-1]] = values[::-1]  # reversed, so that the first appearance is written last
        return first[self.number]


def _counting(lengths) -> np.ndarray:
    """0, 1, 2, ... for each length in turn."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _numbering(walk, first_id):
    """Each id appeared before, or is the next number."""
    reached = np.maximum.accumulate(walk.ids)
    before = np.concatenate([[first_id - 1], reached[:-1]])
    gap = (walk.ids > before) & (walk.ids - 1 != before)
    if not first_id and walk.ids[0] == 1:  # ids may also start at 1
        gap[0], first_id = False, 1
    message = "ids are not numbered by first appearance: each must have appeared before or be the next number."
    return BrokenRule("numbering", walk.rows(gap | (walk.ids < first_id)), message)


def _chains(walk):
    """Blocks form a forest: a block's parent is the block before it; that of an output is the last full block."""
    parent = np.concatenate([[-1], walk.number[:-1]])
    parent[walk.starts[:-1][np.diff(walk.starts) > 0]] = -1
    at = np.flatnonzero(walk.is_output[1:] & ~walk.is_output[:-1] & (walk.row[1:] == walk.row[:-1])) + 1
    last_full = np.minimum(walk.starts[walk.row[at]] + walk.place[at], at) - 1
    parent[at] = np.where(walk.place[at] > 0, walk.number[last_full], -1)
    message = "an id follows another id than at its first appearance: the ids do not form a forest."
    return BrokenRule("chains", walk.rows(parent != walk.at_first(parent)), message)


def _block_sizes(walk, columns, block_size, tail):
    """An id has one block size; a unique tail has its own id."""
    length = columns.input_length[walk.row] + np.where(walk.is_output, columns.output_length[walk.row], 0)
    size = np.minimum(block_size, length - walk.place * block_size)  # 0 or less where the row's block count is wrong
    first = walk.at_first(size)
    differs = (size != first) & (size > 0) & (first > 0)
    yield BrokenRule(
        "block sizes", walk.rows(differs), "an id has another number of tokens than at its first appearance."
    )
    if tail == "unique":
        uses = np.bincount(walk.number, minlength=walk.distinct)
        shared = (size < block_size) & ~walk.is_output & (uses[walk.number] > 1)
        yield BrokenRule("tails", walk.rows(shared), "its tail block is shared, but tails are unique in this trace.")
