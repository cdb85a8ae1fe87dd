"""Normalise the columns of a file for a Trace: rows in time order, times from 0, ids by first appearance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .._base.arrays import in_first, joined
from .._base.results import Result, columns_of
from .columns import Columns, replace_columns
from .invariants import require_dependencies, require_offsets

NEWEST_FIRST = "in reverse time order (newest first)"


@dataclass(repr=False)
class Fixes(Result):
    """The changes that made a Trace of a file's columns."""

    rows_moved: int = 0  # rows with an earlier time than a row before them
    is_reversed: bool = False  # whether times fell from row to row, in all rows or in those of each session
    first_timestamp: float = 0.0  # ms subtracted from all times
    renumbered: bool = False  # whether ids did not count 0, 1, 2, ... by first appearance
    dangling_parents: int = 0  # parents that do not exist or come later: read as -1
    more_blocks: int = 0  # prompts with more blocks than their tokens fill, which are kept
    fewer_blocks: int = 0  # prompts with fewer

    def also(self, before: Fixes) -> None:
        """Add the changes that a reader made before."""
        self.rows_moved += before.rows_moved
        self.first_timestamp += before.first_timestamp
        self.dangling_parents += before.dangling_parents

    def _headline(self) -> str:
        return str(self) or "none"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of([asdict(self)])

    def __str__(self) -> str:
        fixes = []
        if self.rows_moved:
            newest_first = f": they came {NEWEST_FIRST}" if self.is_reversed else ""
            fixes.append(f"{self.rows_moved:,} rows were sorted by time{newest_first}")
        if self.first_timestamp:
            fixes.append(f"times started at {self.first_timestamp:,g} ms and now start at 0")
        if self.renumbered:
            fixes.append("ids were renumbered by first appearance")
        if self.dangling_parents:
            fixes.append(f"{self.dangling_parents:,} missing or later parents were read as -1")
        if self.more_blocks or self.fewer_blocks:
            fixes.append(uneven(self.more_blocks, self.fewer_blocks))
        return "; ".join(fixes)


def uneven(more: int, fewer: int) -> str:
    """The numbers of prompts with more or fewer blocks than their tokens fill, in words.

    >>> uneven(1, 20)
    '1 prompt has more blocks than its tokens fill, and 20 have fewer; the block counts are kept'
    >>> uneven(0, 20)
    '20 prompts have fewer blocks than their tokens fill; the block counts are kept'
    """
    counts = [(count, word) for count, word in ((more, "more"), (fewer, "fewer")) if count]
    first, *rest = counts or [(0, "more")]
    subject, whose = ("prompt has", "its") if first[0] == 1 else ("prompts have", "their")
    words = f"{first[0]:,} {subject} {first[1]} blocks than {whose} tokens fill"
    words += "".join(f", and {count:,} {'has' if count == 1 else 'have'} {word}" for count, word in rest)
    return f"{words}; the block counts are kept"


def normalise(columns: Columns) -> tuple[Columns, Fixes]:
    """The columns with rows sorted by time (stable), times from 0; ids, sessions and domains by first appearance."""
    fixes, columns = Fixes(), replace_columns(columns)
    require_offsets("offsets", columns.offsets, len(columns), len(columns.hash_ids))
    if columns.dependencies is not None:
        require_dependencies(columns.dependencies, len(columns))
    if not (columns.timestamp[1:] >= columns.timestamp[:-1]).all():
        reached = np.maximum.accumulate(columns.timestamp)
        fixes.rows_moved = int((columns.timestamp < reached).sum())
        fixes.is_reversed = is_reversed(columns.timestamp, columns.session)
        columns = columns.take(np.argsort(columns.timestamp, kind="stable"))
    if len(columns) and columns.timestamp[0] != 0:
        fixes.first_timestamp = float(columns.timestamp[0])
        with np.errstate(over="ignore", invalid="ignore"):  # such times are not finite, which the Trace reports
            columns.timestamp = columns.timestamp - columns.timestamp[0]
    if columns.parent is not None:
        dangling = columns.parent >= np.arange(len(columns))
        fixes.dangling_parents = int(dangling.sum())
        columns.parent = np.where(dangling, -1, columns.parent)
    if columns.session is not None:
        columns.session = by_first_appearance(columns.session)
    if columns.domain is not None:
        columns.domain = by_first_appearance(columns.domain)
    fixes.renumbered = renumber(columns)
    return columns, fixes


def is_reversed(timestamp: np.ndarray, session: np.ndarray | None = None) -> bool:
    """Whether no time is later than that of the row before: of all rows, or of the rows of each session (-1 = none).

    Some exports list the newest request first. Two rows are too few to tell.

    >>> is_reversed(np.array([30, 20, 10])), is_reversed(np.array([20, 40, 10, 30]), np.array([0, 1, 0, 1]))
    (True, True)
    """
    if len(timestamp) < 3 or (timestamp[1:] >= timestamp[:-1]).all():
        return False
    if (timestamp[1:] <= timestamp[:-1]).all():
        return True
    if session is None:
        return False
    order = np.argsort(session, kind="stable")
    session, falls = session[order], np.diff(timestamp[order])
    falls = falls[(session[1:] == session[:-1]) & (session[1:] >= 0)]
    return len(falls) > 1 and bool((falls <= 0).all() and (falls < 0).any())


def by_first_appearance(numbers: np.ndarray) -> np.ndarray:
    """Sessions or domains renumbered 0, 1, 2, ... by first appearance; -1 stays."""
    from .._native import numbering

    inside = numbers >= 0
    numbered = np.full(len(numbers), -1, dtype=np.int64)
    numbered[inside] = numbering.renumber(numbers[inside])[0]
    return numbered


def renumber(columns: Columns) -> bool:
    """Renumber the ids by first appearance, each row's prompt before its output; True if any changed."""
    from .._native import numbering

    if columns.output_ids is None or columns.output_offsets is None:
        if numbering.is_numbered(columns.hash_ids):
            return False  # without a second array of all ids
        columns.hash_ids = numbering.renumber(columns.hash_ids)[0]
        return True
    prompts, outputs = np.diff(columns.offsets), np.diff(columns.output_offsets)
    blocks = joined((columns.hash_ids, prompts), (columns.output_ids, outputs))
    if numbering.is_numbered(blocks):
        return False
    numbered, in_prompt = numbering.renumber(blocks)[0], in_first(prompts, outputs)
    columns.hash_ids, columns.output_ids = numbered[in_prompt], numbered[~in_prompt]
    return True
