"""Infer the block size of a trace: the size that gives every prompt its number of blocks.

A prompt of L tokens has ceil(L / B) blocks if tails are kept and floor(L / B) if they are dropped. Each row therefore
allows an interval of sizes, and a trace the intersection of the intervals of its rows.

In files of lengths only, such as the JSON Lines of GuideLLM's `trace_synthetic`, no row has hash_ids. Each prompt gets
blocks of its own, so that the trace has its length in blocks; its `meta` says that shared prefixes are unknown, and no
hit rate follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, RowError, wrong_word
from ..trace.columns import BLOCK_RULES, STATED, TAILS, BlockRule
from ..trace.invariants import MAX_LENGTH, expected_blocks, require_block_size, require_own_blocks
from .sidecar import ReadResult

ANY = 1 << 62  # no upper end
MAX_TOKENS = 1 << 24  # larger than the blocks of any engine
MAX_FACTOR = 64  # a larger multiple of the size that fits is a mistake, not a wish for larger blocks


@dataclass(frozen=True)
class SizeRange:
    """The block sizes from `low` to `high` that fit the first `rows` rows; none if high < low."""

    low: int
    high: int
    rows: int

    def first(self, count: int) -> list[int]:
        """The smallest of them, at most `count`."""
        return list(range(self.low, self.high + 1)[:count])

    def powers(self) -> list[int]:
        """The powers of two among them."""
        return [1 << k for k in range(MAX_TOKENS.bit_length()) if self.low <= 1 << k <= self.high]


def settle(result: ReadResult, block_size: int | None = None, tail: BlockRule | None = None) -> tuple[int, BlockRule]:
    """The block size and tail of a file; given values must fit, missing ones are inferred.

    RowError names the first row that does not fit; InputError lists the sizes if several fit.
    """
    if tail not in (None, *BLOCK_RULES):
        raise wrong_word(tail, "a valid tail", BLOCK_RULES)
    if block_size is not None:
        require_block_size(block_size)
    lengths, blocks = result.columns.input_length, np.diff(result.columns.offsets)
    if (negative := np.flatnonzero(lengths < 0)).size:
        raise result.error(negative[0], "input_length is negative.")
    rules: list[BlockRule] = [tail] if tail else ["kept", "dropped"]
    if block_size is None:
        return _infer(result, lengths, blocks, rules)
    if tail == STATED:
        return block_size, tail
    for rule in rules:
        if np.array_equal(expected_blocks(lengths, block_size, rule), blocks):
            return block_size, rule
    raise _misfit(result, lengths, blocks, block_size, rules)


def fitting(lengths: np.ndarray, blocks: np.ndarray, tail: str) -> SizeRange:
    """The block sizes that fit all rows, or else those that fit the longest run of rows from the first.

    >>> fitting(np.array([7000, 2200]), np.array([14, 5]), "kept")
    SizeRange(low=500, high=538, rows=2)
    """
    low, high = _intervals(lengths, blocks, tail)
    low, high = np.maximum.accumulate(low), np.minimum.accumulate(high)
    fits = int(np.searchsorted(low > high, True))  # False ... False True ... True
    if fits == 0:
        return SizeRange(1, 0 if len(lengths) else ANY, 0)
    return SizeRange(int(low[fits - 1]), int(high[fits - 1]), fits)


def _intervals(lengths, blocks, tail):
    """The smallest and the largest block size of each row; largest < smallest if none fits."""
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


def _infer(result, lengths, blocks, rules) -> tuple[int, BlockRule]:
    fits = {rule: fitting(lengths, blocks, rule) for rule in rules}
    whole = {rule: sizes for rule, sizes in fits.items() if sizes.rows == len(lengths)}
    if not whole:
        raise _nothing_fits(result, lengths, blocks, fits)
    every: dict[int, BlockRule] = {}
    usual: dict[int, BlockRule] = {}
    for rule in reversed(whole):  # kept wins: if both rules fit a size, no prompt has a tail
        every |= dict.fromkeys(whole[rule].first(2), rule)  # two suffice to distinguish one from several
        usual |= dict.fromkeys(whole[rule].powers(), rule)
    for candidates in (every, usual):
        if len(candidates) == 1:
            return next(iter(candidates.items()))
    likely = next(iter(whole.values()))  # kept tails, if they fit
    raise InputError(f"{result.path}: {_interval(likely)} fit its prompts. {_try(likely.powers())}")


def _misfit(result, lengths, blocks, block_size, rules) -> RowError:
    """The error for the first row that does not fit a given block size, with the sizes that would."""
    wrong = {rule: expected_blocks(lengths, block_size, rule) for rule in rules}
    rule = max(rules, key=lambda rule: int(np.argmax(wrong[rule] != blocks)))
    row = int(np.argmax(wrong[rule] != blocks))
    whole = [sizes for rule in rules if (sizes := fitting(lengths, blocks, rule)).rows == len(lengths)]
    better = [size for sizes in whole for size in sizes.powers()] or [sizes.low for sizes in whole]
    return result.error(
        row,
        f"{_ids(blocks[row])} for {lengths[row]:,} tokens; at block size {block_size} there should be "
        f"{wrong[rule][row]:,}.",
        _try(better) + _larger(block_size, better) if better else None,
    )


def _nothing_fits(result, lengths, blocks, fits) -> RowError:
    """The error for the first row that excludes all block sizes, under the tail rule that fits the most rows."""
    rule, sizes = max(fits.items(), key=lambda item: item[1].rows)
    row = sizes.rows
    if not row:
        return result.error(row, f"{_ids(blocks[row])} for {lengths[row]:,} tokens; no block size fits.")
    size = (sizes.powers() or [sizes.low])[0]
    return result.error(
        row,
        f"{_ids(blocks[row])} for {lengths[row]:,} tokens; at block size {size}, which fits all earlier rows, there "
        f"should be {int(expected_blocks(lengths[row], size, rule)):,}.",
    )


def _ids(count) -> str:
    return f"{count:,} hash_id{'' if count == 1 else 's'}"


def _interval(sizes: SizeRange) -> str:
    if sizes.high == ANY:
        return f"all block sizes from {sizes.low:,}"
    return f"block sizes from {sizes.low:,} to {sizes.high:,}"


def _larger(block_size, sizes) -> str:
    """The commands for the given block size, if it is a few times the one that fits."""
    factor, rest = divmod(block_size, sizes[0])
    if rest or factor > MAX_FACTOR or len(set(sizes)) > 1:
        return ""
    return (
        f" For blocks of {block_size} tokens, use `kvtrace convert --fold {factor}`, `kvtrace sweep --block-size "
        f"{factor}x` or `kvtrace analyze --fold 1,{factor}`."
    )


def _try(sizes) -> str:
    sizes = sorted(set(sizes))[:4]
    return f"Try --block-size {' or '.join(map(str, sizes))}." if sizes else "Try --block-size."


BLOCK_SIZE = 512  # tokens, where neither an option nor a sidecar states it; as for a log of lengths


def make_up_blocks(result: ReadResult, block_size: int | None, tail: BlockRule | None) -> tuple[int, BlockRule]:
    """Give each prompt of a file of lengths only blocks of its own; returns their size, and the kind of tails.

    Given values come first, then those of the sidecar.

    >>> from kvtrace.trace.columns import Columns
    >>> result = ReadResult(Columns([0, 1], [5, 4], [1, 1], [], [0, 0, 0]), "day.jsonl", "mooncake", lengths_only=True)
    >>> make_up_blocks(result, 4, None), result.columns.hash_ids.tolist(), result.columns.offsets.tolist()
    ((4, 'kept'), [0, 1, 2], [0, 2, 3])
    """
    sidecar, columns = result.sidecar, result.columns
    size = block_size or (sidecar and sidecar.block_size) or BLOCK_SIZE
    tail = tail or (sidecar and sidecar.tail) or "kept"
    rule = tail if tail in TAILS else "kept"
    tokens = np.clip(columns.input_length, 0, MAX_LENGTH)  # `check` lists the rows with others
    require_own_blocks(tokens, size, "prompts")
    columns.offsets = offsets_of(expected_blocks(tokens, size, rule))
    columns.hash_ids = np.arange(columns.offsets[-1])
    return size, rule
