"""Input lengths within bounds, where stretching took them beyond: paths are cut, or get further blocks of their own."""

from __future__ import annotations

import numpy as np

from .draft import Draft


def within(draft: Draft, block_size: int, least: int | None, most: int | None) -> Draft:
    """The same rows, none of less than `least` or more than `most` input tokens.

    A path that is cut ends in a full block, which others may share; one that is too short has its own, last block
    filled or followed by new ones. A shared partial block is never changed: a new block takes its place.
    """
    tokens = draft.input_length(block_size)
    wanted = np.clip(tokens, least, most)
    if (wanted == tokens).all():
        return draft
    blocks, tail = draft.path_blocks.copy(), draft.tail.copy()
    kept = blocks.copy()  # leading blocks of the old path that stay
    for row in np.flatnonzero(wanted < tokens):
        kept[row] = blocks[row] = max(wanted[row] // block_size, 0)
        tail[row] = block_size
        if not blocks[row]:  # less than a block is wanted
            blocks[row], tail[row] = 1, wanted[row]
    for row in np.flatnonzero(wanted > tokens):
        kept[row] -= tail[row] < block_size  # its partial block would be another one
        blocks[row] = -(-wanted[row] // block_size)
        tail[row] = wanted[row] - (blocks[row] - 1) * block_size
    return _cut(draft, kept, blocks, tail)


def _cut(draft, kept, blocks, tail):
    """Rows with the first `kept` of their blocks, and new ones up to `blocks`."""
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)  # place of each block in its path
    old = place < np.repeat(kept, blocks)
    found = np.empty(len(place), dtype=np.int32)
    found[old] = draft.blocks[(np.repeat(draft.offsets[:-1], blocks) + place)[old]]
    first = int(draft.blocks.max(initial=-1)) + 1
    found[~old] = np.arange(first, first + (~old).sum())
    return Draft(draft.arrival, offsets, found, tail, draft.output_length, draft.session, draft.parent, draft.extra)
