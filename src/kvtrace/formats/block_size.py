"""The block size of a trace that does not say it: the size at which every prompt has the blocks it has.

A prompt of L tokens has ceil(L / B) blocks where tails are kept and floor(L / B) where they are dropped, so each row
leaves an interval of sizes, and a trace the intersection of its rows' intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.errors import InputError, RowError, UsageError
from ..trace.columns import TAILS
from ..trace.invariants import expected_blocks
from .read_result import ReadResult

ANY = 1 << 62  # no upper end
MOST = 1 << 24  # no engine has larger blocks


@dataclass(frozen=True)
class Sizes:
    """Block sizes that fit: from `low` to `high`, none if high is less; `rows` is how many rows they fit."""

    low: int
    high: int
    rows: int

    def first(self, most: int) -> list[int]:
        """The smallest of them."""
        return list(range(self.low, self.high + 1)[:most])

    def powers(self) -> list[int]:
        """The powers of two among them."""
        return [1 << k for k in range(MOST.bit_length()) if self.low <= 1 << k <= self.high]


def settle(found: ReadResult, block_size: int | None = None, tail: str | None = None) -> tuple[int, str]:
    """The block size and the tail rule of what was found; what is given must fit, what is not is inferred.

    RowError names the first row that nothing fits; InputError says which sizes fit when there are several.
    """
    if tail not in (None, *TAILS):
        raise UsageError(f"tail is {tail!r}; it is one of {', '.join(TAILS)}.")
    if block_size is not None and (type(block_size) is not int or block_size < 1):
        raise UsageError(f"block size is {block_size!r}; it is a whole number of tokens, 1 or more.")
    lengths, blocks = found.columns.input_length, np.diff(found.columns.offsets)
    if (negative := np.flatnonzero(lengths < 0)).size:
        raise found.error(negative[0], "input_length is negative.")
    rules = [tail] if tail else ["kept", "dropped"]
    if block_size is None:
        return _infer(found, lengths, blocks, rules)
    for rule in rules:
        if np.array_equal(expected_blocks(lengths, block_size, rule), blocks):
            return block_size, rule
    raise _misfit(found, lengths, blocks, block_size, rules)


def fitting(lengths: np.ndarray, blocks: np.ndarray, tail: str) -> Sizes:
    """The block sizes at which every prompt has its blocks, or those of the longest run of rows from the first on.

    >>> fitting(np.array([7000, 2200]), np.array([14, 5]), "kept")
    Sizes(low=500, high=538, rows=2)
    """
    low, high = _intervals(lengths, blocks, tail)
    low, high = np.maximum.accumulate(low), np.minimum.accumulate(high)
    fits = int(np.searchsorted(low > high, True))  # False ... False True ... True
    if fits == 0:
        return Sizes(1, 0 if len(lengths) else ANY, 0)
    return Sizes(int(low[fits - 1]), int(high[fits - 1]), fits)


def _intervals(lengths, blocks, tail):
    """The smallest and the largest block size of each row; the largest is less where none fits."""
    low, high = np.ones_like(lengths), np.full_like(lengths, ANY)
    if tail == "dropped":
        some = blocks > 0
        low = np.maximum(low, lengths // (blocks + 1) + 1)
        high[some] = lengths[some] // blocks[some]
        return low, high
    some, several = blocks > 0, blocks > 1
    low[some] = np.maximum(-(-lengths[some] // blocks[some]), 1)
    high[several] = -(-lengths[several] // (blocks[several] - 1)) - 1
    high[(lengths == 0) != (blocks == 0)] = 0
    return low, high


def _infer(found, lengths, blocks, rules) -> tuple[int, str]:
    fits = {rule: fitting(lengths, blocks, rule) for rule in rules}
    whole = {rule: sizes for rule, sizes in fits.items() if sizes.rows == len(lengths)}
    if not whole:
        raise _nothing_fits(found, lengths, blocks, fits)
    every: dict[int, str] = {}
    usual: dict[int, str] = {}
    for rule in reversed(whole):  # kept has the last word: where both rules fit a size, no prompt has a tail
        every |= dict.fromkeys(whole[rule].first(2), rule)  # two are enough to tell one from several
        usual |= dict.fromkeys(whole[rule].powers(), rule)
    for candidates in (every, usual):
        if len(candidates) == 1:
            return next(iter(candidates.items()))
    likely = next(iter(whole.values()))  # tails kept, if they can be
    raise InputError(f"{found.path}: {_said(likely)} would fit its prompts. {_try(likely.powers())}")


def _misfit(found, lengths, blocks, block_size, rules) -> RowError:
    """The first row that breaks a given block size, and what would fit."""
    wrong = {rule: expected_blocks(lengths, block_size, rule) for rule in rules}
    rule = max(rules, key=lambda rule: int(np.argmax(wrong[rule] != blocks)))
    row = int(np.argmax(wrong[rule] != blocks))
    whole = [sizes for rule in rules if (sizes := fitting(lengths, blocks, rule)).rows == len(lengths)]
    better = [size for sizes in whole for size in sizes.powers()] or [sizes.low for sizes in whole]
    return found.error(
        row,
        f"{_ids(blocks[row])} for {lengths[row]:,} tokens; at block size {block_size} that prompt has "
        f"{wrong[rule][row]:,}.",
        _try(better) if better else None,
    )


def _nothing_fits(found, lengths, blocks, fits) -> RowError:
    """The first row that leaves no block size, under the rule that lasts longest."""
    rule, sizes = max(fits.items(), key=lambda item: item[1].rows)
    row = sizes.rows
    if not row:
        return found.error(row, f"{_ids(blocks[row])} for {lengths[row]:,} tokens; no block size gives that.")
    size = (sizes.powers() or [sizes.low])[0]
    return found.error(
        row,
        f"{_ids(blocks[row])} for {lengths[row]:,} tokens; at block size {size}, which fits all rows before, that "
        f"prompt has {int(expected_blocks(lengths[row], size, rule)):,}.",
    )


def _ids(count) -> str:
    return f"{count:,} hash_id{'' if count == 1 else 's'}"


def _said(sizes: Sizes) -> str:
    if sizes.high == ANY:
        return f"any block size from {sizes.low:,} up"
    return f"block sizes from {sizes.low:,} to {sizes.high:,}"


def _try(sizes) -> str:
    sizes = sorted(set(sizes))[:4]
    return f"Try --block-size {' or '.join(map(str, sizes))}." if sizes else "Try --block-size."
