"""A draft: rows of a synthetic trace whose blocks do not have their final ids yet; its multipliers and length limits.

The multipliers make longer or shorter prefixes and prompts, and several copies of the core, for both methods. Core
blocks are visited by at least two rows of the sample; other blocks are unique to a row. A path with k core blocks and j
unique blocks gets round(x k) core blocks and round(y j) unique blocks, at least one of each kind that it had. Halves
are rounded up, so that x1.5 lies between x1 and x2. The core block at depth d becomes the blocks after round(x (d - 1))
up to round(x d), so paths that shared blocks still share the resulting blocks.

Limits apply after that: paths are truncated, or extended by unique blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, UsageError
from .._native import synthesis as kernel


@dataclass(eq=False)
class Draft:
    """Consecutive rows of one stream.

    Each stream numbers its own blocks. A new block gets the next number, so a path is a run of numbers seen before,
    followed by consecutive new numbers. A block always has the same number of tokens.
    """

    arrival: np.ndarray  # row -> ms, never falling within a stream
    offsets: np.ndarray  # the path of row r is blocks[offsets[r]:offsets[r + 1]]
    blocks: np.ndarray  # the concatenated paths: int32, or int64 once streams are merged
    tail: np.ndarray  # row -> tokens in its last block, 1 ... block_size
    output_length: np.ndarray  # row -> tokens
    session: np.ndarray  # row -> session, numbered by the stream, -1 = none
    parent: np.ndarray  # row -> row of the previous turn in the stream, -1 = none
    extra: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def path_blocks(self) -> np.ndarray:
        """Blocks of each path."""
        return np.diff(self.offsets)

    def input_length(self, block_size: int) -> np.ndarray:
        """Prompt tokens of each row.

        >>> draft = Draft(*(np.array(values) for values in ([0.0], [0, 2], [0, 1], [3], [1], [-1], [-1])))
        >>> draft.input_length(512).tolist()
        [515]
        """
        return (self.path_blocks - 1) * block_size + self.tail

    def head(self, rows: int) -> Draft:
        """The first `rows` rows."""
        return Draft(
            self.arrival[:rows], self.offsets[: rows + 1], self.blocks[: self.offsets[min(rows, len(self))]],
            self.tail[:rows], self.output_length[:rows], self.session[:rows], self.parent[:rows],
            {name: column[:rows] for name, column in self.extra.items()},
        )  # fmt: skip


NUMBERS = 1 << 31  # block numbers that a draft can hold


class StretchState:
    """The state between chunks of a stream: the new numbers of core blocks."""

    keys: np.ndarray
    firsts: np.ndarray

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.fresh = 0  # the next unused number
        self.used = 0  # slots of the table in use
        self.keys = np.full(1 << 10, -1, dtype=np.int64)  # slot -> block and copy, -1 = empty
        self.firsts = np.full(1 << 10, -1, dtype=np.int32)  # slot -> first of the new numbers

    def make_room(self, more: int) -> None:
        """Grow the table so that it stays half empty after `more` insertions."""
        slots = len(self.keys)
        while slots < 2 * (self.used + more):
            slots *= 2
        if slots > len(self.keys):
            self.keys, self.firsts = kernel.moved(self.keys, self.firsts, slots)


def stretched(
    draft: Draft, core: np.ndarray, state: StretchState, *,
    prefix_len: float = 1.0, prompt_len: float = 1.0, roots: int = 1, rng: np.random.Generator | None = None,
) -> Draft:  # fmt: skip
    """Multiply core blocks by prefix_len and unique blocks by prompt_len, in `roots` disjoint copies of the core.

    Drafts of one stream must come in order, with the same state and rng. Partial blocks keep their tokens, and shared
    partial blocks are never removed.

    Args:
        draft: The rows.
        core: Block number -> whether at least two rows visit it.
        state: The state of the stream.
        prefix_len: Multiplier of core blocks.
        prompt_len: Multiplier of unique blocks.
        roots: The number of copies of the core.
        rng: Draws the copy of each row.

    Raises:
        UsageError: A multiplier is out of range.

    >>> none = [-1, -1]
    >>> rows = map(np.array, ([0.0, 1.0], [0, 2, 4], [0, 1, 0, 2], [4, 4], [1, 1], none, none))
    >>> longer = stretched(Draft(*rows), np.array([True, False, False]), StretchState(4), prefix_len=2)
    >>> longer.blocks.tolist(), longer.offsets.tolist()
    ([0, 1, 2, 0, 1, 3], [0, 3, 6])
    """
    require_multipliers(prefix_len, prompt_len, roots)
    core_count = kernel.core_blocks(draft.blocks, draft.offsets, core)  # row -> core blocks
    unique_count = draft.path_blocks - core_count
    longest = max(int(core_count.max(initial=0)) * prefix_len, int(unique_count.max(initial=0)) * prompt_len)
    if longest >= NUMBERS:
        raise InputError(f"a stretched prompt would have {longest:,.0f} blocks. Try smaller multipliers.")
    end = scaled(
        np.arange(int(core_count.max(initial=0)) + 1), prefix_len
    )  # depth -> core blocks down to it after scaling
    partial = (unique_count == 0) & (draft.tail < state.block_size)
    is_lost = partial & (end[core_count] == end[np.maximum(core_count - 1, 0)])
    offsets = offsets_of(end[core_count] + is_lost + scaled(unique_count, prompt_len))
    if state.fresh + int(offsets[-1]) >= NUMBERS:
        raise InputError("the stretched sample would have more than 2^31 blocks. Try fewer requests.")
    state.make_room(min(int(core_count.sum()), int(np.count_nonzero(core)) * roots))
    blocks, state.fresh, added = kernel.stretch(
        draft.blocks, draft.offsets, core_count, partial, _copies(len(draft), roots, rng), roots, end, offsets,
        state.keys, state.firsts, state.fresh,
    )  # fmt: skip
    state.used += added
    return Draft(
        draft.arrival, offsets, blocks, draft.tail, draft.output_length, draft.session, draft.parent, draft.extra
    )


def require_multipliers(prefix_len: float, prompt_len: float, roots: int) -> None:
    """UsageError unless the multipliers are numbers of at least 0, and `roots` is an integer of at least 1.

    >>> require_multipliers(-1, 1, 1)
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: the prefix length multiplier is -1; it must be at least 0.
    """
    for name, value in (("prefix", prefix_len), ("prompt", prompt_len)):
        if not (np.isfinite(value) and value >= 0):
            raise UsageError(f"the {name} length multiplier is {value:g}; it must be at least 0.")
    if not isinstance(roots, (int, np.integer)) or not 1 <= roots < NUMBERS:
        raise UsageError(f"the prefix root multiplier is {roots!r}; it must be a whole number of at least 1.")


def scaled(blocks: np.ndarray, by: float) -> np.ndarray:
    """Block counts times a multiplier, rounded half up; at least 1 for a count of at least 1.

    >>> scaled(np.arange(5), 1.5).tolist(), scaled(np.arange(5), 0.25).tolist()
    ([0, 2, 3, 5, 6], [0, 1, 1, 1, 1])
    """
    return np.maximum(np.floor(blocks * by + 0.5).astype(np.int64), blocks > 0)


def _copies(rows, roots, rng) -> np.ndarray:
    """The copy of the core of each row."""
    if roots == 1:
        return np.zeros(rows, dtype=np.int64)
    return (rng.random(rows) * roots).astype(np.int64)


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
