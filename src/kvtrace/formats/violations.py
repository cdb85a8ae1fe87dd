"""The invariants of any trace file, looked for in the file as it stands: nothing is normalised first.

Block counts fit the lengths, times begin at 0 and never fall, ids are numbered by first appearance, each id follows the
same id wherever it appears and names a block of one size; parents exist. (Offsets, the first invariant of a Trace, are
not in a file's rows.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._base.errors import InputError, RowError
from .._base.files import name_of
from .._native import ids
from ..trace.columns import Columns
from ..trace.invariants import expected_blocks
from .trace_files import Found, read_columns, settle


@dataclass(frozen=True)
class Violation:
    """One line of a trace file that breaks a rule; `line` is None where the file as a whole does."""

    path: str
    line: int | None  # from 1; in a Parquet file, the row from 1
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{'' if self.line is None else f'{self.line}:'} {self.message}"


def check(
    path: str | Path,
    *,
    block_size: int | None = None,
    tail: str | None = None,
    format: str | None = None,
    max_per_rule: int = 20,
    threads: int | None = None,
) -> list[Violation]:
    """Check a trace file against the invariants of a trace, as it stands, and list what breaks them.

    Args:
        path: A trace file, a data set folder, or "-" for stdin.
        block_size: Tokens a block; the default is the sidecar's, else what the prompts imply.
        tail: "kept", "unique" or "dropped"; the default is the sidecar's.
        format: "mooncake", "bailian", "parquet" or "dataset"; the default is told by the content.
        max_per_rule: Lines to list for each rule; the others are counted.
        threads: Threads that parse; the default is one a core.

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
    broken = _Broken(max_per_rule)
    found = read_columns(path, format=format, threads=threads, on_error=broken.add)
    listed = _List(name_of(path), max_per_rule)
    listed.add_rows("rows", broken.rows, broken.count, lambda error: (error.line, _without_place(error)))
    if not len(found.columns):
        listed.add("rows", "holds no requests.")
        return listed.violations
    block_size, tail = _sizes(listed, found, block_size, tail)
    for rule, rows, message in _findings(found, block_size, tail):
        listed.add_rows(rule, rows[:max_per_rule], len(rows), partial(_told, found, message))
    return listed.violations


def _told(found: Found, message: str | Callable[[int], str], row: int) -> tuple[int, str]:
    """Where a row stands, and what is said of it."""
    return found.line(row), message if isinstance(message, str) else message(row)


class _Broken:
    """The first rows that could not be read, and the number of all."""

    def __init__(self, most: int):
        self.rows: list[RowError] = []
        self.count, self._most = 0, most

    def add(self, error: RowError) -> None:
        self.count += 1
        if len(self.rows) < self._most:
            self.rows.append(error)


class _List:
    """Violations, of each rule not more than `most`."""

    def __init__(self, path: str, most: int):
        self.violations: list[Violation] = []
        self._path, self._most = path, most

    def add(self, rule: str, message: str, line: int | None = None) -> None:
        violation = Violation(self._path, line, rule, message)
        if not any(same.line == line and same.message == message for same in self.violations[-self._most :]):
            self.violations.append(violation)

    def add_rows(self, rule: str, first, count: int, say: Callable[[Any], tuple[int | None, str]]) -> None:
        """The first rows of `count` that break a rule; `say` gives the line and the message of one."""
        for row in first[: self._most]:
            line, message = say(row)
            self.add(rule, message, line)
        if count > self._most:
            self.add(rule, f"... and {count - self._most:,} more: {rule}.")


def _without_place(error: RowError) -> str:
    return str(RowError(error.reason, field=error.field, hint=error.hint))


def _sizes(listed: _List, found: Found, block_size, tail) -> tuple[int | None, str]:
    """Block size and tail as given, as the sidecar says or as the prompts imply; None, and a violation, if unknown."""
    said = found.sidecar
    if said is not None and not said.describes(found.columns):
        if block_size is None:
            listed.add("sidecar", said.mismatch(found.columns).removeprefix(f"{said.path}: "))
        said = None
    if said is not None:
        block_size, tail = block_size or said.block_size, tail or said.tail
    if block_size is not None:
        return block_size, tail or _likely_tail(found, block_size)
    try:
        return settle(found, None, tail)
    except RowError as error:
        listed.add("block counts", _without_place(error), error.line)
    except InputError as error:
        listed.add("block counts", str(error).removeprefix(f"{found.path}: "))
    return None, tail or "kept"


def _likely_tail(found, block_size) -> str:
    """The rule that more rows follow."""
    lengths, blocks = found.columns.input_length, np.diff(found.columns.offsets)
    fits = {rule: (expected_blocks(lengths, block_size, rule) == blocks).sum() for rule in ("kept", "dropped")}
    return max(fits, key=fits.__getitem__)


# -- the rules ---------------------------------------------------------------------------------------------------


class _Finding(NamedTuple):
    """A rule, the rows that break it, and what to say of each: the same of all, or a function of the row."""

    rule: str
    rows: np.ndarray
    message: str | Callable[[int], str]


def _findings(found: Found, block_size: int | None, tail: str) -> Iterator[_Finding]:
    columns = found.columns
    yield _Finding("input_length", np.flatnonzero(columns.input_length < 0), "input_length is negative.")
    yield _Finding("output_length", np.flatnonzero(columns.output_length < 0), "output_length is negative.")
    if block_size is not None:
        yield _block_counts(columns, block_size, tail)
        if columns.output_offsets is not None:
            yield _output_blocks(columns, block_size, tail)
    yield from _times(columns.timestamp)
    walk = _Walk(columns, block_size)
    if len(walk.ids):
        yield _numbering(walk, 0 if found.sidecar is None else found.sidecar.first_id)
        yield _chains(walk)
        if block_size is not None:
            yield from _block_sizes(walk, columns, block_size, tail)
    yield from _parents(found)


def _block_counts(columns, block_size, tail):
    blocks, lengths = np.diff(columns.offsets), columns.input_length
    expected = expected_blocks(lengths, block_size, tail)

    def message(row):
        ids = f"{blocks[row]:,} hash_id{'' if blocks[row] == 1 else 's'}"
        return f"{ids} for {lengths[row]:,} tokens; at block size {block_size} that prompt has {expected[row]:,}."

    return _Finding("block counts", np.flatnonzero((blocks != expected) & (lengths >= 0)), message)


def _output_blocks(columns, block_size, tail):
    blocks, lengths = np.diff(columns.output_offsets), columns.input_length
    expected = expected_blocks(lengths + columns.output_length, block_size, tail) - lengths // block_size

    def message(row):
        return (
            f"{blocks[row]:,} output_hash_ids for {columns.output_length[row]:,} tokens after {lengths[row]:,}; at "
            f"block size {block_size} they have {expected[row]:,}."
        )

    return _Finding("output blocks", np.flatnonzero((blocks != 0) & (blocks != expected)), message)


def _times(time):
    yield _Finding("times", np.flatnonzero(~np.isfinite(time)), "the timestamp is not finite.")
    yield _Finding("times", np.flatnonzero(time[:1] != 0), "the first timestamp is not 0.")
    yield _Finding("times", 1 + np.flatnonzero(time[1:] < time[:-1]), "the timestamp is less than the row's before.")


def _parents(found):
    yield _Finding("parents", found.lost_parents, "its parent is not in the file.")
    if (parent := found.columns.parent) is not None:
        yield _Finding("parents", np.flatnonzero(parent >= np.arange(len(parent))), "its parent is not an earlier row.")
    yield _Finding("chat ids", found.repeated, "its chat_id is that of an earlier row.")


class _Walk:
    """All block references in the order of numbering: each row's prompt, and then its output."""

    def __init__(self, columns: Columns, block_size: int | None):
        prompt, output = np.diff(columns.offsets), np.zeros(len(columns), dtype=np.int64)
        self.ids, self.row = columns.hash_ids, np.repeat(np.arange(len(columns)), prompt)
        self.place = _counting(prompt)  # of a block in its prompt, or in its prompt and output
        self.is_output = np.zeros(len(self.ids), dtype=bool)
        if columns.output_ids is not None and columns.output_offsets is not None:
            output = np.diff(columns.output_offsets)
            row = np.repeat(np.arange(len(columns)), output)
            order = np.argsort(np.concatenate([2 * self.row, 2 * row + 1]), kind="stable")
            full = np.maximum(columns.input_length // block_size, 0) if block_size else prompt
            self.ids = np.concatenate([self.ids, columns.output_ids])[order]
            self.place = np.concatenate([self.place, _counting(output) + full[row]])[order]
            self.is_output = np.repeat([False, True], [len(self.row), len(row)])[order]
            self.row = np.concatenate([self.row, row])[order]
        self.starts = np.zeros(len(columns) + 1, dtype=np.int64)
        np.cumsum(prompt + output, out=self.starts[1:])
        self.number, self.distinct = ids.renumber(self.ids)

    def rows(self, broken: np.ndarray) -> np.ndarray:
        """The rows of the references that are marked."""
        return np.unique(self.row[broken])

    def at_first(self, values: np.ndarray) -> np.ndarray:
        """The value that each reference's id has where it appears first."""
        first = np.empty(self.distinct, dtype=np.int64)
        first[self.number[::-1]] = values[::-1]  # what is assigned last stays: the first appearance
        return first[self.number]


def _counting(lengths) -> np.ndarray:
    """0, 1, 2, ... for each length in turn."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _numbering(walk, first_id):
    """Every id is one that was seen, or the next number."""
    reached = np.maximum.accumulate(walk.ids)
    before = np.concatenate([[first_id - 1], reached[:-1]])
    gap = (walk.ids > before) & (walk.ids - 1 != before)
    if not first_id and walk.ids[0] == 1:  # ids from 1 are as good, sidecar or not
        gap[0], first_id = False, 1
    message = "ids are not numbered by first appearance: each is one that came before, or the next number."
    return _Finding("numbering", walk.rows(gap | (walk.ids < first_id)), message)


def _chains(walk):
    """The blocks form a forest: a block's parent is the one before it, or the last full one before an output."""
    parent = np.concatenate([[-1], walk.number[:-1]])
    parent[walk.starts[:-1][np.diff(walk.starts) > 0]] = -1
    at = np.flatnonzero(walk.is_output[1:] & ~walk.is_output[:-1] & (walk.row[1:] == walk.row[:-1])) + 1
    last_full = np.minimum(walk.starts[walk.row[at]] + walk.place[at], at) - 1
    parent[at] = np.where(walk.place[at] > 0, walk.number[last_full], -1)
    message = "an id follows another id than where it appears first: the ids do not form a forest."
    return _Finding("chains", walk.rows(parent != walk.at_first(parent)), message)


def _block_sizes(walk, columns, block_size, tail):
    """An id names one block, so it has one size; a tail that is unique has an id of its own."""
    length = columns.input_length[walk.row] + np.where(walk.is_output, columns.output_length[walk.row], 0)
    size = np.minimum(block_size, length - walk.place * block_size)  # 0 or less where the row's block count is wrong
    first = walk.at_first(size)
    differs = (size != first) & (size > 0) & (first > 0)
    yield _Finding("block sizes", walk.rows(differs), "an id has more or fewer tokens than where it appears first.")
    if tail == "unique":
        uses = np.bincount(walk.number, minlength=walk.distinct)
        shared = (size < block_size) & ~walk.is_output & (uses[walk.number] > 1)
        yield _Finding("tails", walk.rows(shared), "its tail block is shared, in a trace whose tails are unique.")
