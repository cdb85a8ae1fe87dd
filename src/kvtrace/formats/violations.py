"""Check the invariants of a trace file without normalising it.

Block counts fit the lengths; times start at 0 and never decrease; ids count by first appearance; each id always follows
the same id and has one block size; parents exist; requests wait for earlier ones, for a time. (A file's rows have no
offsets, the first invariant of a Trace.)

All rows that break a rule are listed. A Trace, which is made more often than it is wrong, asks `_native.forest` about
its ids, which finds the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._base.arrays import in_first, joined, offsets_of
from .._base.errors import InputError, RowError
from .._base.files import name_of
from .._base.results import Result, columns_of
from .._base.step_work import report_work
from .._native import numbering
from ..trace.columns import STATED, BlockRule, Columns
from ..trace.invariants import (
    BrokenRule,
    broken_dependencies,
    broken_numbers,
    broken_parents,
    broken_rules,
    likely_tail,
)
from .block_size import make_up_blocks, settle
from .reading import read_columns
from .sidecar import ReadResult


def broken_id_rules(columns: Columns, block_size: int | None, tail: str, *, first_id: int = 0) -> Iterator[BrokenRule]:
    """The rules for ids, each with the rows that break it; without block size, sizes are not compared.

    >>> columns = Columns([0.0, 1.0], [2, 2], [1, 1], [0, 1, 2, 1], [0, 2, 4])
    >>> [rule.rule for rule in broken_id_rules(columns, 1, "kept") if len(rule.rows)]
    ['chains']
    """
    walk = _IdWalk(columns, None if tail == STATED else block_size)
    report_work(1, 3)
    if len(walk.ids):
        yield _numbering(walk, first_id)
        report_work(1, 3)
        yield _chains(walk)
        if block_size is not None and tail != STATED:  # stated blocks are full ones
            yield from _block_sizes(walk, columns, block_size, tail)


class _IdWalk:
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


@dataclass(frozen=True, repr=False)
class Violation(Result):
    """A violation of a rule on one line of a trace file; `line` is None for the whole file."""

    path: str
    line: int | None  # from 1; in a Parquet file, the row from 1
    rule: str
    message: str

    def _headline(self) -> str:
        return f"{self.rule}: {self}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of([vars(self)])

    def __str__(self) -> str:
        return f"{self.path}:{'' if self.line is None else f'{self.line}:'} {self.message}"


def check(
    path: str | Path,
    *,
    block_size: int | None = None,
    tail: BlockRule | None = None,
    format: str | None = None,
    max_per_rule: int = 20,
    threads: int | None = None,
    on_read: Callable[[int], None] | None = None,
) -> list[Violation]:
    """Check a trace file against the invariants of a trace, as it stands, and list what breaks them.

    Args:
        path: A trace file, a data set folder, or "-" for stdin.
        block_size: Tokens per block; the default is from the sidecar, else what the prompts imply.
        tail: "kept", "unique" or "dropped"; the default is the sidecar's.
        format: One of `formats.format_table.NAMES`; the default depends on the content.
        max_per_rule: Lines to list for each rule; the others are counted.
        threads: Threads that parse; the default is one a core.
        on_read: Receives the number of requests when the file is read.

    Returns:
        The violations, rule by rule; an empty list if all invariants hold.

    Raises:
        InputError: The file cannot be read at all.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    ...     row = '{"timestamp": 5, "input_length": 2, "output_length": 1, "hash_ids": [0]}'
    ...     _ = file.write(row), file.flush()
    ...     [violation.rule for violation in check(file.name, block_size=2)]
    ['times']
    """
    unreadable = _UnreadableRows(max_per_rule)
    result = read_columns(path, format=format, threads=threads, on_error=unreadable.add)
    if on_read:
        on_read(len(result.columns))
    listed = _List(name_of(path), max_per_rule)
    listed.add_rows("rows", unreadable.rows, unreadable.count, lambda error: (error.line, _without_place(error)))
    if not len(result.columns):
        listed.add("rows", "the file has no requests.")
        return listed.violations
    if result.lengths_only:
        block_size, tail = make_up_blocks(result, block_size, tail)
    block_size, tail = _sizes(listed, result, block_size, tail)
    for rule, rows, message in _broken_rules(result, block_size, tail):
        listed.add_rows(rule, rows[:max_per_rule], len(rows), partial(_located, result, message))
    return listed.violations


def _located(result: ReadResult, message: str | Callable[[int], str], row: int) -> tuple[int, str]:
    """The line of a row, and its message."""
    return result.line(row), message if isinstance(message, str) else message(row)


class _UnreadableRows:
    """The first unreadable rows, and the number of all."""

    def __init__(self, max_per_rule: int):
        self.rows: list[RowError] = []
        self.count, self._max = 0, max_per_rule

    def add(self, error: RowError) -> None:
        self.count += 1
        if len(self.rows) < self._max:
            self.rows.append(error)


class _List:
    """Violations, at most `max_per_rule` for each rule."""

    def __init__(self, path: str, max_per_rule: int):
        self.violations: list[Violation] = []
        self._path, self._max = path, max_per_rule

    def add(self, rule: str, message: str, line: int | None = None) -> None:
        violation = Violation(self._path, line, rule, message)
        if not any(same.line == line and same.message == message for same in self.violations[-self._max :]):
            self.violations.append(violation)

    def add_rows(self, rule: str, first, count: int, describe: Callable[[Any], tuple[int | None, str]]) -> None:
        """Add the first of `count` rows that break a rule; `describe` gives the line and the message of one."""
        for row in first[: self._max]:
            line, message = describe(row)
            self.add(rule, message, line)
        if count > self._max:
            self.add(rule, f"... and {count - self._max:,} more: {rule}.")


def _without_place(error: RowError) -> str:
    return str(RowError(error.reason, field=error.field, hint=error.hint))


def _sizes(listed: _List, result: ReadResult, block_size, tail) -> tuple[int | None, BlockRule]:
    """Block size and tail from the caller, the sidecar or the prompts; None, and a violation, if unknown."""
    sidecar = result.sidecar
    if sidecar is not None and not sidecar.describes(result.columns):
        if block_size is None:
            listed.add("sidecar", sidecar.mismatch(result.columns).removeprefix(f"{sidecar.path}: "))
        sidecar = None
    if sidecar is not None:
        block_size, tail = block_size or sidecar.block_size, tail or sidecar.tail
    if block_size is not None:
        return block_size, tail or likely_tail(result.columns, block_size)
    try:
        return settle(result, None, tail)
    except RowError as error:
        listed.add("block counts", _without_place(error), error.line)
    except InputError as error:
        listed.add("block counts", str(error).removeprefix(f"{result.path}: "))
    return None, tail or "kept"


# -- the rules ---------------------------------------------------------------------------------------------------


def _broken_rules(result: ReadResult, block_size: int | None, tail: str) -> Iterator[BrokenRule]:
    """The rules of rows and of ids, and those that only a file can break."""
    yield from broken_rules(result.columns, block_size, tail)
    first_id = 0 if result.sidecar is None else result.sidecar.first_id
    yield from broken_id_rules(result.columns, block_size, tail, first_id=first_id)
    yield BrokenRule("parents", result.lost_parents, "the parent is not in the file.")
    yield from broken_parents(result.columns)
    yield from broken_dependencies(result.columns)
    yield from broken_numbers(result.columns)
    yield BrokenRule("chat ids", result.repeated, "an earlier row has the same chat_id.")
