"""The multipliers: longer or shorter prefixes and prompts, and several copies of the core, on drafts of any method.

Core blocks are those that two rows of the sample or more visit; the others are a row's own. Of a path's k core blocks
round(x k) are left, one at least, and of its j own blocks round(y j), one at least: a half is rounded up, so that x1.5
lies between x1 and x2. The core block at depth d owns the numbers after round(x (d - 1)) up to round(x d), so paths
that shared blocks share what became of them.
"""

from __future__ import annotations

import numpy as np

from .._base.errors import InputError, UsageError
from .._native import stretch as kernel
from .draft import Draft

NUMBERS = 1 << 31  # block numbers that a draft can hold


class State:
    """What later chunks of a stream must know of those before: the numbers that core blocks were given."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.fresh = 0  # the next new number
        self.used = 0  # slots of the table in use
        self.keys = np.full(1 << 10, -1, dtype=np.int64)  # slot -> block and copy, -1 = empty
        self.firsts = np.full(1 << 10, -1, dtype=np.int32)  # slot -> the first of their numbers

    def make_room(self, more: int) -> None:
        """Let the table take so many keys more and stay half empty."""
        slots = len(self.keys)
        while slots < 2 * (self.used + more):
            slots *= 2
        if slots > len(self.keys):
            self.keys, self.firsts = kernel.moved(self.keys, self.firsts, slots)


def stretched(
    draft: Draft, core: np.ndarray, state: State, *, prefix_len: float = 1.0, prompt_len: float = 1.0, roots: int = 1,
    rng: np.random.Generator | None = None,
) -> Draft:  # fmt: skip
    """The draft with its core blocks times prefix_len, its own blocks times prompt_len, in `roots` disjoint copies.

    `core` says of each block number of the stream whether two rows or more visit it. Drafts of one stream come in
    order, with one state and one rng, which draws the copy that each row takes. Partial blocks keep their tokens; a
    shared one is never lost. UsageError where a multiplier is out of range.

    >>> none = [-1, -1]
    >>> rows = map(np.array, ([0.0, 1.0], [0, 2, 4], [0, 1, 0, 2], [4, 4], [1, 1], none, none))
    >>> longer = stretched(Draft(*rows), np.array([True, False, False]), State(4), prefix_len=2)
    >>> longer.blocks.tolist(), longer.offsets.tolist()
    ([0, 1, 2, 0, 1, 3], [0, 3, 6])
    """
    require_multipliers(prefix_len, prompt_len, roots)
    kept = kernel.core_blocks(draft.blocks, draft.offsets, core)  # row -> core blocks
    own = draft.path_blocks - kept
    longest = max(int(kept.max(initial=0)) * prefix_len, int(own.max(initial=0)) * prompt_len)
    if longest >= NUMBERS:
        raise InputError(f"a stretched prompt would have {longest:,.0f} blocks. Try smaller multipliers.")
    end = scaled(np.arange(int(kept.max(initial=0)) + 1), prefix_len)  # depth -> core blocks that are left down to it
    partial = (own == 0) & (draft.tail < state.block_size)
    is_lost = partial & (end[kept] == end[np.maximum(kept - 1, 0)])
    offsets = np.zeros(len(draft) + 1, dtype=np.int64)
    np.cumsum(end[kept] + is_lost + scaled(own, prompt_len), out=offsets[1:])
    if state.fresh + int(offsets[-1]) >= NUMBERS:
        raise InputError("the stretched sample would have more blocks than can be numbered. Try fewer requests.")
    state.make_room(min(int(kept.sum()), int(np.count_nonzero(core)) * roots))
    blocks, state.fresh, added = kernel.stretch(
        draft.blocks, draft.offsets, kept, partial, _copies(len(draft), roots, rng), roots, end, offsets,
        state.keys, state.firsts, state.fresh,
    )  # fmt: skip
    state.used += added
    return Draft(
        draft.arrival, offsets, blocks, draft.tail, draft.output_length, draft.session, draft.parent, draft.extra
    )


def require_multipliers(prefix_len: float, prompt_len: float, roots: int) -> None:
    """UsageError unless lengths can be multiplied so, and there is one copy of the core or more.

    >>> require_multipliers(-1, 1, 1)
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: the prefix length multiplier is -1; it is a number, 0 or more. Try 1.
    """
    for name, value in (("prefix", prefix_len), ("prompt", prompt_len)):
        if not (np.isfinite(value) and value >= 0):
            raise UsageError(f"the {name} length multiplier is {value:g}; it is a number, 0 or more. Try 1.")
    if not isinstance(roots, (int, np.integer)) or not 1 <= roots < NUMBERS:
        raise UsageError(f"the prefix root multiplier is {roots!r}; it is a whole number of copies, 1 or more. Try 1.")


def scaled(blocks: np.ndarray, by: float) -> np.ndarray:
    """Block counts times a multiplier: rounded, halves up, and one at least where there was one.

    >>> scaled(np.arange(5), 1.5).tolist(), scaled(np.arange(5), 0.25).tolist()
    ([0, 2, 3, 5, 6], [0, 1, 1, 1, 1])
    """
    return np.maximum(np.floor(blocks * by + 0.5).astype(np.int64), blocks > 0)


def _copies(rows, roots, rng) -> np.ndarray:
    """The copy of the core that each row takes."""
    if roots == 1:
        return np.zeros(rows, dtype=np.int64)
    return (rng.random(rows) * roots).astype(np.int64)
