"""Check the invariants of a trace file without normalising it.

Block counts fit the lengths; times start at 0 and never decrease; ids count by first appearance; each id always follows
the same id and has one block size; parents exist; requests wait for earlier ones, for a time. (A file's rows have no
offsets, the first invariant of a Trace.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .._base.errors import InputError, RowError
from .._base.files import name_of
from .._base.results import Result, columns_of
from ..trace.id_rules import broken_id_rules
from ..trace.invariants import (
    BrokenRule,
    broken_dependencies,
    broken_numbers,
    broken_parents,
    broken_rules,
    likely_tail,
)
from .block_size import settle
from .lengths_only import make_up_blocks
from .read_result import ReadResult
from .reading import read_columns


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
    tail: str | None = None,
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


def _sizes(listed: _List, result: ReadResult, block_size, tail) -> tuple[int | None, str]:
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
