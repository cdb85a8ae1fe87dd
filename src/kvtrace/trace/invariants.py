"""The invariants of a trace's rows: each broken rule is a finding. A Trace raises the first, `check` lists all.

Block counts fit the lengths; times start at 0 and never decrease; parents and dependencies come earlier. The rules for
ids are in formats/violations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from .._base.errors import InputError, UsageError
from .columns import MAX_TIME, NUMBERS, STATED, BlockRule, Columns, numbers_of
from .dependencies import RELATIONS, TRIGGERS, Dependencies
from .unknown import UNKNOWN_LENGTH

MAX_LENGTH = 1 << 24  # tokens of a prompt or an output; the longest context of a public model is 10 million
MEAN_PROMPT, MEAN_OUTPUT = 1 << 20, 1 << 16  # tokens a request, at most, that are cut into blocks of their own
FEW_BLOCKS = 1 << 22  # that any file may have
MAX_BLOCK_SIZE = 1 << 40  # tokens, longer than any prompt
HINTS = {"block counts": " Try another block size.", "times": " Use Trace.from_columns."}  # rule -> the Python remedy


class BrokenRule(NamedTuple):
    """A rule, the rows that break it, and the message for all of them or a function of the row."""

    rule: str
    rows: np.ndarray
    message: str | Callable[[int], str]

    def message_of(self, row: int) -> str:
        """The message for one row."""
        return self.message if isinstance(self.message, str) else self.message(row)


def broken_rules(columns: Columns, block_size: int | None, tail: str) -> Iterator[BrokenRule]:
    """The rules for rows, each with the rows that break it (mostly none); without block size, no block is counted.

    >>> columns = Columns([0.0], [5], [1], [0, 1], [0, 2])
    >>> [(rule.rule, rule.message_of(0)) for rule in broken_rules(columns, 2, "kept") if len(rule.rows)]
    [('block counts', '2 hash_ids for 5 tokens; at block size 2 there should be 3.')]
    """
    yield from broken_lengths(columns)
    if block_size is not None:
        yield _block_counts(columns, block_size, tail)
        if columns.output_offsets is not None:
            yield _output_blocks(columns, columns.output_offsets, block_size, tail)
    time = columns.timestamp
    yield BrokenRule("finite times", np.flatnonzero(~np.isfinite(time)), "the timestamp is not finite.")
    yield BrokenRule("times", np.flatnonzero(time[:1] != 0), "the first timestamp is not 0.")
    yield BrokenRule("times", 1 + np.flatnonzero(time[1:] < time[:-1]), "the timestamp is less than in the row before.")
    late = np.flatnonzero((time > MAX_TIME) & (time < np.inf))
    yield BrokenRule("late times", late, "the timestamp is more than 2^53 ms (285,000 years) after the first.")


def broken_lengths(columns: Columns) -> Iterator[BrokenRule]:
    """The rules for lengths: work and memory are linear in them, so that no row may state what no engine serves.

    >>> columns = Columns([0.0], [5], [2**31], [0], [0, 1])
    >>> [rule.message_of(0) for rule in broken_lengths(columns) if len(rule.rows)]
    ['output_length is 2,147,483,648 tokens; the limit is 16,777,216. Check its unit, or leave the row out.']
    """
    for name, least in (("input_length", 0), ("output_length", UNKNOWN_LENGTH)):
        values = getattr(columns, name)
        yield BrokenRule(name, np.flatnonzero(values < least), f"{name} is negative.")
        yield BrokenRule(name, np.flatnonzero(values > MAX_LENGTH), partial(_too_long, name, values))


def _too_long(name: str, values: np.ndarray, row: int) -> str:
    return f"{name} is {values[row]:,} tokens; the limit is {MAX_LENGTH:,}. Check its unit, or leave the row out."


def require_own_blocks(tokens: np.ndarray, block_size: int, what: str, mean: int = MEAN_PROMPT) -> None:
    """InputError if lengths alone make more blocks than their requests can have.

    A row of a few bytes can state 16 million tokens. Memory is linear in the rows, if their mean is bounded.

    Args:
        tokens: Request -> the tokens that become blocks of its own.
        block_size: Tokens per block.
        what: The lengths, for the message.
        mean: Tokens of a request, on average.

    >>> require_own_blocks(np.full(100, 1 << 24), 16, "outputs", MEAN_OUTPUT)
    Traceback (most recent call last):
    kvtrace._base.errors.InputError: the 100 outputs have 16,777,216 tokens on average; the limit is 65,536. \
Check their unit, or use larger blocks.
    """
    rows, total = len(tokens), int(np.maximum(tokens, 0).sum())
    if total > max(FEW_BLOCKS * block_size, mean * rows, MAX_LENGTH):
        raise InputError(
            f"the {rows:,} {what} have {total // rows:,} tokens on average; the limit is {mean:,}. "
            "Check their unit, or use larger blocks."
        )


def broken_parents(columns: Columns) -> Iterator[BrokenRule]:
    """The rule for parents, if there are any: they come earlier."""
    if (parent := columns.parent) is not None:
        later = np.flatnonzero(parent >= np.arange(len(parent)))
        yield BrokenRule("parents", later, "the parent is not an earlier row.")


def broken_dependencies(columns: Columns) -> Iterator[BrokenRule]:
    """The rules for dependencies, if there are any: on earlier rows, so that no request waits for itself."""
    if (waits := columns.dependencies) is not None:
        _require_lists(waits, len(columns))
        request, missing = waits.request, missing_dependencies(waits)
        yield missing
        later = (waits.row >= request) & (waits.row < len(waits))
        yield BrokenRule("dependencies", request[later], "the request waits for itself or for a later row.")
        delay = waits.delay_ms
        wrong = request[~((delay >= 0) & (delay <= MAX_TIME))]
        yield BrokenRule("dependencies", wrong, "a delay is negative, not a number, or longer than 2^53 ms.")
        for name, values, choices in (("trigger", waits.trigger, TRIGGERS), ("relation", waits.relation, RELATIONS)):
            unknown = request[(values < 0) | (values >= len(choices))]
            yield BrokenRule("dependencies", unknown, f"the {name} of a dependency is none of {', '.join(choices)}.")


def broken_numbers(columns: Columns) -> Iterator[BrokenRule]:
    """The rules for what was measured, if there is any: times are durations, cached tokens are of the prompt.

    >>> columns = Columns([0.0], [5], [1], [0, 1], [0, 2], cached_tokens=[6])
    >>> [rule.message_of(0) for rule in broken_numbers(columns) if len(rule.rows)]
    ['cached_tokens is not from 0 to input_length.']
    """
    for name, values in numbers_of(columns).items():
        number = NUMBERS[name]
        yield BrokenRule(number.rule, np.flatnonzero(number.is_wrong(values, columns.input_length)), number.fault)


def missing_dependencies(waits: Dependencies) -> BrokenRule:
    """The rule that the rows of dependencies exist."""
    missing = (waits.row < 0) | (waits.row >= len(waits))
    return BrokenRule("dependencies", waits.request[missing], "the request waits for a row that does not exist.")


def rows_that_break(columns: Columns, block_size: int, tail: str) -> dict[str, np.ndarray]:
    """Rule -> whether each row breaks it."""
    broken: dict[str, np.ndarray] = {}
    for rule in broken_rules(columns, block_size, tail):
        broken.setdefault(rule.rule, np.zeros(len(columns), dtype=bool))[rule.rows] = True
    return broken


def require_rows(columns: Columns, block_size: int, tail: str, hints: Mapping[str, str] = HINTS) -> None:
    """InputError that names the first broken rule, its first row, and a hint."""
    rows = len(columns)
    names = ("input_length", "output_length", "session", "parent", "domain", *NUMBERS)
    named = {name: getattr(columns, name) for name in names}
    for name, values in (named | {f"extra column {name!r}": values for name, values in columns.extra.items()}).items():
        if values is not None and values.shape != (rows,):
            raise InputError(f"{name} has {values.size:,} values, but there are {rows:,} requests.")
    checks = (broken_rules(columns, block_size, tail), broken_parents(columns), broken_dependencies(columns),
              broken_numbers(columns))  # fmt: skip
    for rule in chain.from_iterable(checks):
        require_unbroken(rule, hints)


def require_unbroken(rule: BrokenRule, hints: Mapping[str, str] = HINTS) -> None:
    """InputError that names the first row that breaks a rule, if any does, and a hint."""
    if len(rule.rows):
        row = int(rule.rows[0])
        raise InputError(f"row {row}: {rule.message_of(row)}{hints.get(rule.rule, '')}")


def require_dependencies(waits: Dependencies, rows: int) -> None:
    """InputError unless dependencies are lists for so many requests, on rows that exist."""
    _require_lists(waits, rows)
    require_unbroken(missing_dependencies(waits))


def _require_lists(waits: Dependencies, rows: int) -> None:
    """InputError unless dependencies are lists for so many requests."""
    if waits.offsets.shape != (rows + 1,):
        raise InputError(
            f"the number of lists of dependencies ({len(waits):,}) is not the number of requests ({rows:,})."
        )
    if (
        waits.offsets[0] != 0
        or (np.diff(waits.offsets) < 0).any()
        or any(len(values) != waits.offsets[-1] for values in waits.arrays()[1:])
    ):
        raise InputError("the offsets of dependencies do not ascend from 0 to their number.")


def require_offsets(name: str, offsets: np.ndarray | None, rows: int, references: int) -> None:
    """InputError unless offsets ascend from 0 to the number of block references."""
    if offsets is None or offsets.shape != (rows + 1,):
        count = 0 if offsets is None else offsets.size
        raise InputError(f"{name} has {count:,} values; {rows:,} requests need {rows + 1:,}.")
    if offsets[0] != 0 or offsets[-1] != references or (np.diff(offsets) < 0).any():
        raise InputError(f"{name} do not ascend from 0 to {references:,}, the number of block references.")


def require_block_size(block_size: int) -> int:
    """The block size, in tokens; UsageError unless it is a whole number from 1 to MAX_BLOCK_SIZE."""
    whole = isinstance(block_size, (int, np.integer)) and not isinstance(block_size, bool)
    if not whole or block_size < 1:
        raise UsageError(f"the block size must be a whole number of tokens, at least 1, not {block_size!r}.")
    if block_size > MAX_BLOCK_SIZE:
        raise UsageError(f"the block size must be at most {MAX_BLOCK_SIZE:,} tokens, not {block_size:,}.")
    return int(block_size)


def expected_blocks(tokens: np.ndarray, block_size: int, tail: str) -> np.ndarray:
    """The number of blocks for each number of tokens; a partial block counts unless tails are dropped."""
    return tokens // block_size if tail == "dropped" else -(-tokens // block_size)


def expected_output_blocks(
    input_length: np.ndarray, output_length: np.ndarray, block_size: int, tail: str
) -> np.ndarray:
    """The number of blocks of each output: those of prompt and output together, less the prompt's full blocks.

    An output of unknown length has none.
    """
    blocks = expected_blocks(input_length + output_length, block_size, tail) - input_length // block_size
    return np.where(output_length == UNKNOWN_LENGTH, 0, blocks)


def likely_tail(columns: Columns, block_size: int) -> BlockRule:
    """The rule for tails that fits more rows: kept or dropped."""
    lengths, blocks = columns.input_length, np.diff(columns.offsets)
    rules: tuple[BlockRule, ...] = ("kept", "dropped")
    fits = {tail: (expected_blocks(lengths, block_size, tail) == blocks).sum() for tail in rules}
    return max(fits, key=fits.__getitem__)


def _block_counts(columns, block_size, tail):
    blocks, lengths = np.diff(columns.offsets), columns.input_length
    expected = blocks if tail == STATED else expected_blocks(lengths, block_size, tail)

    def message(row):
        ids = f"{blocks[row]:,} hash_id{'' if blocks[row] == 1 else 's'}"
        return f"{ids} for {lengths[row]:,} tokens; at block size {block_size} there should be {expected[row]:,}."

    return BrokenRule("block counts", np.flatnonzero((blocks != expected) & (lengths >= 0)), message)


def _output_blocks(columns, output_offsets, block_size, tail):
    blocks, lengths = np.diff(output_offsets), columns.input_length
    expected = blocks if tail == STATED else expected_output_blocks(lengths, columns.output_length, block_size, tail)

    def message(row):
        if columns.output_length[row] == UNKNOWN_LENGTH:
            return f"{blocks[row]:,} output_hash_ids, but output_length is unknown."
        return (
            f"{blocks[row]:,} output_hash_ids for {columns.output_length[row]:,} tokens after {lengths[row]:,}; at "
            f"block size {block_size} there should be {expected[row]:,}."
        )

    return BrokenRule("output blocks", np.flatnonzero((blocks != 0) & (blocks != expected)), message)
