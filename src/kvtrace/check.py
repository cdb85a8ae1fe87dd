"""The invariants of any trace file, looked for in the file as it stands: nothing is mended first.

Block counts fit the lengths, times begin at 0 and never fall, ids are numbered by first appearance, each id follows the
same id wherever it appears and names a block of one size; parents exist. (Offsets, the first invariant of a Trace, are
not in a file's rows.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ._kernels import ids
from .errors import InputError, RowError
from .files import name_of
from .formats import Found, read_columns, settle
from .trace import Columns, expected_blocks


@dataclass(frozen=True)
class Violation:
    """One line of a trace file that breaks a rule; `line` is None where the file as a whole does."""

    path: str
    line: int | None  # from 1; in a Parquet file, the row from 1
    rule: str
    message: str

    def __str__(self):
        return f"{self.path}:{'' if self.line is None else f'{self.line}:'} {self.message}"


def check(
    path: str | Path,
    *,
    block_size: int | None = None,
    tail: str | None = None,
    format: str | None = None,
    most: int = 20,
    threads: int | None = None,
) -> list[Violation]:
    """What is wrong with a trace file, rule by rule and line by line; empty if nothing is.

    Of each rule the first `most` lines are listed and the rest counted. InputError only if the file can't be read.
    """
    broken = _Broken(most)
    try:
        found = read_columns(path, format=format, threads=threads, on_error=broken.add)
    except RowError as error:
        raise InputError(str(error)) from None
    listed = _List(name_of(path), most)
    listed.extend("rows", broken.rows, broken.count, lambda error: (error.line, _without_place(error)))
    if not len(found.columns):
        listed.whole("rows", "holds no requests.")
        return listed.violations
    block_size, tail = _sizes(listed, found, block_size, tail)
    for rule, rows, message in _broken_rules(found, block_size, tail):
        listed.extend(rule, rows[:most], len(rows), lambda row, say=message: (found.line(row), say(row)))
    return listed.violations


class _Broken:
    """The first rows that could not be read, and the number of all."""

    def __init__(self, most):
        self.rows: list[RowError] = []
        self.count, self._most = 0, most

    def add(self, error: RowError):
        self.count += 1
        if len(self.rows) < self._most:
            self.rows.append(error)


class _List:
    """Violations, capped rule by rule."""

    def __init__(self, path, most):
        self.violations: list[Violation] = []
        self._path, self._most = path, most

    def whole(self, rule, message):
        self.violations.append(Violation(self._path, None, rule, message))

    def extend(self, rule, first, count, say):
        for item in first[: self._most]:
            line, message = say(item)
            self.violations.append(Violation(self._path, line, rule, message))
        if count > self._most:
            self.whole(rule, f"... and {count - self._most:,} more: {rule}.")


def _without_place(error: RowError) -> str:
    return str(RowError(error.reason, field=error.field, hint=error.hint))


def _sizes(listed, found, block_size, tail) -> tuple[int | None, str | None]:
    """Block size and tail as given, as the sidecar says or as the prompts imply; None, and a violation, if unknown."""
    said = found.sidecar
    if said is not None and not said.describes(found.columns):
        if block_size is None:
            listed.whole("sidecar", said.mismatch(found.columns).removeprefix(f"{said.path}: "))
        said = None
    if said is not None:
        block_size, tail = block_size or said.block_size, tail or said.tail
    if block_size is not None:
        return block_size, tail or _likely_tail(found, block_size)
    try:
        return settle(found, None, tail)
    except RowError as error:
        listed.extend("block counts", [error], 1, lambda error: (error.line, _without_place(error)))
    except InputError as error:
        listed.whole("block counts", str(error).removeprefix(f"{found.path}: "))
    return None, tail


def _likely_tail(found, block_size) -> str:
    """The rule that more rows follow."""
    lengths, blocks = found.columns.input_length, np.diff(found.columns.offsets)
    fits = {rule: (expected_blocks(lengths, block_size, rule) == blocks).sum() for rule in ("kept", "dropped")}
    return max(fits, key=fits.__getitem__)


# -- the rules: (name, rows that break it, what to say of a row) -------------------------------------------------------


def _broken_rules(found: Found, block_size, tail) -> Iterator[tuple]:
    columns = found.columns
    for name in ("input_length", "output_length"):
        yield name, np.flatnonzero(getattr(columns, name) < 0), lambda row, name=name: f"{name} is negative."
    if block_size is not None:
        yield from _block_counts(columns, block_size, tail)
    yield from _times(columns)
    walk = _Walk(columns, block_size)
    yield from _numbering(walk, 0 if found.sidecar is None else found.sidecar.first_id)
    yield from _chains(walk)
    if block_size is not None:
        yield from _block_sizes(walk, columns, block_size, tail)
    yield "parents", found.lost_parents, lambda row: "its parent is not in the file."
    if columns.parent is not None:
        late = np.flatnonzero(columns.parent >= np.arange(len(columns)))
        yield "parents", late, lambda row: "its parent is not an earlier row."
    yield "chat ids", found.repeated, lambda row: "its chat_id is that of an earlier row."


def _block_counts(columns, block_size, tail):
    blocks, lengths = np.diff(columns.offsets), columns.input_length
    expected = expected_blocks(lengths, block_size, tail)
    yield "block counts", np.flatnonzero((blocks != expected) & (lengths >= 0)), lambda row: (
        f"{blocks[row]:,} hash_id{'' if blocks[row] == 1 else 's'} for {lengths[row]:,} tokens; at block size "
        f"{block_size} that prompt has {expected[row]:,}."
    )
    if columns.output_offsets is None:
        return
    outputs = np.diff(columns.output_offsets)
    grown = expected_blocks(lengths + columns.output_length, block_size, tail) - lengths // block_size
    yield "output blocks", np.flatnonzero((outputs != 0) & (outputs != grown)), lambda row: (
        f"{outputs[row]:,} output_hash_ids for {columns.output_length[row]:,} tokens after {lengths[row]:,}; at block "
        f"size {block_size} they have {grown[row]:,}."
    )


def _times(columns):
    time = columns.timestamp
    yield "times", np.flatnonzero(~np.isfinite(time)), lambda row: "the timestamp is not finite."
    yield "times", np.flatnonzero(time[:1] != 0), lambda row: "the first timestamp is not 0."
    yield "times", 1 + np.flatnonzero(time[1:] < time[:-1]), lambda row: "the timestamp is less than the row's before."


class _Walk:
    """All block references in the order of numbering: each row's prompt, and then its output."""

    def __init__(self, columns: Columns, block_size):
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

    def differs_from_first(self, values: np.ndarray) -> np.ndarray:
        """Where an id has another value than where it appears first."""
        first = np.empty(self.distinct, dtype=np.int64)
        first[self.number[::-1]] = values[::-1]  # the last to be assigned stays: the first appearance
        return first[self.number] != values


def _counting(lengths) -> np.ndarray:
    """0, 1, 2, ... for each length in turn."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _numbering(walk, first_id):
    """Every id is one that was seen, or the next number; a writer may begin at another number than 0."""
    if not len(walk.ids):
        return
    reached = np.maximum.accumulate(walk.ids)
    before = np.concatenate([[first_id - 1], reached[:-1]])
    gap = (walk.ids > before) & (walk.ids - 1 != before)
    if not first_id and walk.ids[0] == 1:
        gap[0], first_id = False, 1  # ids from 1, as the first published traces of this kind have
    yield "numbering", walk.rows(gap | (walk.ids < first_id)), lambda row: (
        "ids are not numbered by first appearance: each is one that came before, or the next number."
    )


def _chains(walk):
    previous = np.concatenate([[-1], walk.number[:-1]])
    previous[walk.starts[:-1][np.diff(walk.starts) > 0]] = -1
    at = np.flatnonzero(walk.is_output & (np.concatenate([[0], walk.row[:-1]]) == walk.row))
    at = at[~walk.is_output[at - 1]]  # where an output begins, it follows its prompt's last full block
    full = walk.starts[walk.row[at]] + walk.place[at]
    previous[at] = np.where(walk.place[at] > 0, walk.number[np.minimum(full, at) - 1], -1)
    yield "chains", walk.rows(walk.differs_from_first(previous)), lambda row: (
        "an id follows another id than where it appears first: the ids do not form a forest."
    )


def _block_sizes(walk, columns, block_size, tail):
    """An id names one block, so it has one size; a tail that is unique has an id of its own."""
    length = np.where(walk.is_output, columns.input_length[walk.row] + columns.output_length[walk.row],
                      columns.input_length[walk.row])  # fmt: skip
    size = np.minimum(block_size, length - walk.place * block_size)
    sound = size > 0  # where block counts are wrong, sizes are not known
    size[~sound] = 0
    differs = walk.differs_from_first(size) & sound
    yield "block sizes", walk.rows(differs), lambda row: "an id has more or fewer tokens than where it appears first."
    if tail == "unique":
        uses = np.bincount(walk.number, minlength=walk.distinct)
        shared = (size < block_size) & ~walk.is_output & (uses[walk.number] > 1)
        yield "tails", walk.rows(shared), lambda row: "its tail block is shared, in a trace whose tails are unique."
