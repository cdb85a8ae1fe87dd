"""Folding: the same trace in blocks that are larger by a whole factor.

Folding is exact on a chained trace, where an id identifies a block and its whole prefix: each group of blocks, also a
partial group at the end of a prompt, takes its LAST id. Splitting blocks would not be exact.
"""

from __future__ import annotations

import numpy as np

from .._base.errors import UsageError
from .._base.offsets import offsets_of
from .columns import STATED, replace_columns, require_trace
from .invariants import MAX_BLOCK_SIZE, expected_blocks, expected_output_blocks
from .normalise import normalise
from .trace import Trace


def fold(trace: Trace, factor: int) -> Trace:
    """Fold a trace into blocks that are `factor` times as large.

    Tails stay what they were: kept, unique (a full block that becomes a tail gets an id of its own), or dropped. Of
    stated blocks, an incomplete group at the end is dropped.

    Raises:
        UsageError: The factor is not a whole number of 1 or more.
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> fold(toy("0 1 2", "0 1 2 3", "0 1 4 5"), 2).hash_ids
    array([0, 1, 0, 2, 0, 3])
    """
    require_trace(trace)
    if isinstance(factor, bool) or not isinstance(factor, (int, np.integer)) or factor < 1:
        raise UsageError(f"the fold factor is {factor!r}; it must be a whole number of at least 1.")
    if factor == 1:
        return trace
    if factor * trace.block_size > MAX_BLOCK_SIZE:
        raise UsageError(f"the fold factor is {factor:,}; blocks can have at most {MAX_BLOCK_SIZE:,} tokens.")
    size, columns = trace.block_size * int(factor), replace_columns(trace.require_chained())
    blocks = expected_blocks(trace.input_length, size, trace.tail)
    if trace.tail == STATED:
        blocks = trace.prompt_blocks // int(factor)
    columns.hash_ids, columns.offsets = _last_ids(trace.hash_ids, trace.offsets, blocks, 0, int(factor))
    if trace.output_ids is not None and trace.output_offsets is not None:
        blocks, within = _output_blocks(trace, size, int(factor))
        columns.output_ids, columns.output_offsets = _last_ids(
            trace.output_ids, trace.output_offsets, blocks, within, int(factor)
        )
    if trace.tail == "unique":
        _number_new_tails(columns, trace, size)
    folded, _ = normalise(columns)
    return Trace(**vars(folded), block_size=size, tail=trace.tail, meta=trace.meta)


def _output_blocks(trace, size, factor):
    """Blocks of each output at the larger size, and the smaller blocks in its first one that belong to the prompt.

    A prompt and its output are one chain; the output's blocks start after the prompt's last full block.
    """
    if trace.tail == STATED:
        rest = trace.prompt_blocks % factor + np.diff(trace.output_offsets)
        return rest // factor, trace.prompt_blocks % factor
    expected = expected_output_blocks(trace.input_length, trace.output_length, size, trace.tail)
    blocks = np.where(np.diff(trace.output_offsets) > 0, expected, 0)
    return blocks, trace.full_blocks % factor


def _last_ids(ids, offsets, blocks, within, factor):
    """The last id of each group, and their offsets; `within` blocks of a row's first group are in another column."""
    folded = offsets_of(blocks)
    group = np.arange(folded[-1]) - np.repeat(folded[:-1], blocks)  # reference -> its group in the row, from 0
    last = np.repeat(offsets[:-1] - within, blocks) + (group + 1) * factor - 1
    return ids[np.minimum(last, np.repeat(offsets[1:], blocks) - 1)], folded


def _number_new_tails(columns, trace, size):
    """Give new ids to tail blocks that are full blocks of the smaller size, because other requests may share them."""
    fresh = trace.distinct
    both = trace.input_length + trace.output_length
    for ids, offsets, tokens in (
        (columns.hash_ids, columns.offsets, trace.input_length),
        (columns.output_ids, columns.output_offsets, both),
    ):
        if ids is None:
            continue
        new = (np.diff(offsets) > 0) & (tokens % size != 0) & (tokens % trace.block_size == 0)
        ids[offsets[1:][new] - 1] = fresh + np.arange(new.sum())
        fresh += int(new.sum())
