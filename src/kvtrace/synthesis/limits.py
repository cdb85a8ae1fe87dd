"""Limits on input lengths after stretching: paths are truncated, or extended by unique blocks."""

from __future__ import annotations

import numpy as np

from .._base.arrays import offsets_of
from .draft import Draft


def within(draft: Draft, block_size: int, min_tokens: int | None, max_tokens: int | None) -> Draft:
    """Change the paths so that all input lengths are within the limits.

    A truncated path ends in a full block, which other paths may share. In a path that is too short, the last unique
    block is filled up and new blocks follow. A shared partial block never changes: a new block replaces it.
    """
    tokens = draft.input_length(block_size)
    target = np.clip(tokens, min_tokens, max_tokens)
    if (target == tokens).all():
        return draft
    blocks, tail = draft.path_blocks.copy(), draft.tail.copy()
    prefix = blocks.copy()  # row -> leading blocks of the old path that remain
    for row in np.flatnonzero(target < tokens):
        prefix[row] = blocks[row] = max(target[row] // block_size, 0)
        tail[row] = block_size
        if not blocks[row]:  # the target is less than a block
            blocks[row], tail[row] = 1, target[row]
    for row in np.flatnonzero(target > tokens):
        prefix[row] -= tail[row] < block_size  # a longer partial block is a different block
        blocks[row] = -(-target[row] // block_size)
        tail[row] = target[row] - (blocks[row] - 1) * block_size
    return _with_new_blocks(draft, prefix, blocks, tail)


def _with_new_blocks(draft, prefix, blocks, tail):
    """Rows with the first `prefix` of their blocks, followed by new blocks up to `blocks`."""
    offsets = offsets_of(blocks)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)  # position of each block in its path
    old = place < np.repeat(prefix, blocks)
    numbers = np.empty(len(place), dtype=np.int32)
    numbers[old] = draft.blocks[(np.repeat(draft.offsets[:-1], blocks) + place)[old]]
    first = int(draft.blocks.max(initial=-1)) + 1
    numbers[~old] = np.arange(first, first + (~old).sum())
    return Draft(draft.arrival, offsets, numbers, tail, draft.output_length, draft.session, draft.parent, draft.extra)
