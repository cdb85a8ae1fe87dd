"""Trace: LLM requests as columns, and the blocks of their prompts as one long array of ids.

A Trace verifies its invariants when it is made, and all other code relies on them; docs/design.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from .._base.errors import InputError, UsageError, wrong_word
from .._base.results import PlottedResult, drawing
from .columns import BLOCK_RULES, NUMBERS, STATED, BlockRule, Columns, fields_of, replace_columns
from .dependencies import DTYPES
from .invariants import require_block_size, require_offsets, require_rows
from .normalise import Fixes, by_first_appearance, normalise, renumber


class Request(NamedTuple):
    """One request of a trace: a row, and the blocks of its prompt."""

    timestamp: float  # ms since the first request
    input_length: int  # tokens
    output_length: int  # tokens, -1 = unknown
    hash_ids: np.ndarray  # blocks of the prompt, root first
    session: int | None = None  # conversation, -1 = none; None if the trace has no sessions
    parent: int | None = None  # row of the previous turn, -1 = root; None if the trace has no parents


class Trace(Columns, PlottedResult):
    """LLM requests in time order, with prompts as block ids that form a forest.

    The arrays are read-only. InputError names the row that breaks an invariant.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1 2", "0 1 3")
    >>> trace
    Trace(2 requests, 6 blocks, 4 distinct, block_size=1, tail=kept)
    >>> trace.prompt(1)
    array([0, 1, 3])
    """

    block_size: int  # tokens per block
    tail: BlockRule
    distinct: int  # number of distinct ids, including outputs
    is_chained: bool  # invariant 5: each id always follows the same id
    meta: dict[str, Any]  # the origin of the trace: the values of its sidecar
    fixes: Fixes

    def __init__(
        self,
        *columns: Any,
        block_size: int,
        tail: BlockRule = "kept",
        meta: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        """Verify columns, which are given as to `Columns`: from `timestamp` to `queue_ms`.

        Args:
            columns, named: The arguments of `Columns`.
            block_size: Tokens per block.
            tail: What the last, partial block of a prompt is; one of BLOCK_RULES.
            meta: The origin of the trace: the values of its sidecar.

        Raises:
            InputError: A row breaks an invariant.
            UsageError: The block size or the tail is not valid.
        """
        super().__init__(*columns, **named)
        self.block_size, self.tail = require_block_size(block_size), tail
        self.meta, self.fixes = dict(meta or {}), Fixes()
        if tail not in BLOCK_RULES:
            raise wrong_word(tail, "a valid tail", BLOCK_RULES)
        self._verify()
        for array in self._arrays().values():
            array.flags.writeable = False

    @classmethod
    def from_columns(
        cls, columns: Columns, *, block_size: int, tail: BlockRule = "kept", meta: Mapping[str, Any] | None = None
    ) -> Self:
        """A Trace of columns as they were found: rows sorted by time, times from 0, ids renumbered.

        `fixes` of the result counts the changes.
        """
        normalised, fixes = normalise(columns)
        trace = cls(**fields_of(normalised), block_size=block_size, tail=tail, meta=meta)
        trace.fixes = fixes
        return trace

    # -- access --------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return (
            f"Trace({len(self):,} requests, {len(self.hash_ids):,} blocks, {self.distinct:,} distinct, "
            f"block_size={self.block_size}, tail={self.tail}{'' if self.is_chained else ', not chained'})"
        )

    def __eq__(self, other: object) -> bool:
        """Equal columns, block size and tail; where a trace comes from (`meta`) does not count."""
        if not isinstance(other, Trace):
            return NotImplemented
        mine, theirs = self._arrays(), other._arrays()
        return (
            (self.block_size, self.tail) == (other.block_size, other.tail)
            and mine.keys() == theirs.keys()
            and all(_same(mine[name], theirs[name]) for name in mine)
        )

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def prompt(self, row: int) -> np.ndarray:
        """The ids of one request's prompt, root first."""
        row = range(len(self))[row]
        return self.hash_ids[self.offsets[row] : self.offsets[row + 1]]

    @property
    def prompt_blocks(self) -> np.ndarray:
        """Blocks of each prompt.

        >>> from kvtrace.trace.building import toy
        >>> toy("0 1 2", "0 3").prompt_blocks
        array([3, 2])
        """
        return np.diff(self.offsets)

    @property
    def working_set(self) -> int:
        """Distinct blocks of the prompts.

        >>> from kvtrace.trace.building import toy
        >>> toy("0 1 2", "0 3").working_set
        4
        """
        return self.distinct if self.output_ids is None else int((np.bincount(self.hash_ids) > 0).sum())

    @property
    def first_blocks(self) -> np.ndarray:
        """The first block of each prompt with blocks.

        >>> from kvtrace.trace.building import toy
        >>> toy("0 1", "", "0 2").first_blocks
        array([0, 0])
        """
        return self.hash_ids[self.offsets[:-1][self.prompt_blocks > 0]]

    @property
    def has_output_blocks(self) -> bool:
        """Whether any output has blocks."""
        return self.output_offsets is not None and bool(self.output_offsets[-1])

    # -- cutting and joining -------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Request: ...

    @overload
    def __getitem__(self, key: slice | Iterable[int] | np.ndarray) -> Trace: ...

    def __getitem__(self, key: int | np.integer[Any] | slice | Iterable[int] | np.ndarray) -> Any:
        """One request; or those of a slice, of a boolean mask, or with the given row numbers, as a trace of its own.

        IndexError for a request that does not exist.

        >>> from kvtrace.trace.building import toy
        >>> trace = toy("0 1", "0 2", "0 2 3")
        >>> trace[-1].input_length, trace[-1].hash_ids
        (3, array([0, 2, 3]))
        >>> trace[1:].hash_ids
        array([0, 1, 0, 1, 2])
        """
        if isinstance(key, (int, np.integer)):
            if not -len(self) <= key < len(self):
                raise IndexError(f"request {key} does not exist: the trace has {len(self):,} requests.")
            row = int(key) % len(self)
            return next(_request(part, row - rows.start) for rows, part in self.pieces() if row < rows.stop)
        if isinstance(key, slice):
            return self.select(np.arange(len(self))[key])
        rows = np.asarray(key)
        if rows.dtype == bool:
            if len(rows) != len(self):
                raise UsageError(f"the mask has {len(rows):,} values for {len(self):,} requests.")
            return self.select(np.flatnonzero(rows))
        return self.select(rows)

    def __iter__(self) -> Iterator[Request]:
        """The requests, one after the other.

        >>> from kvtrace.trace.building import toy
        >>> [request.hash_ids.tolist() for request in toy("0 1", "0 2")]
        [[0, 1], [0, 2]]
        """
        for _, part in self.pieces():
            yield from (_request(part, row) for row in range(len(part)))

    def select(self, rows: Iterable[int] | np.ndarray) -> Trace:
        """The given rows in time order: ids, sessions and domains renumbered, times from 0, missing parents -1.

        Dependencies on requests that are not selected are cut: those requests start at their timestamps.
        """
        rows = np.asarray(rows)
        if rows.size == 0:
            rows = rows.astype(np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise UsageError("select rows by row numbers, a slice or a boolean mask. Example: trace[3:5].")
        if len(rows) and (rows.min() < -len(self) or rows.max() >= len(self)):
            row = rows.max() if rows.max() >= len(self) else rows.min()
            raise UsageError(f"row {row} does not exist: the trace has {len(self):,} requests.")
        rows = np.sort(np.where(rows < 0, rows + len(self), rows))
        if len(rows) > 1 and (np.diff(rows) == 0).any():
            raise UsageError("a row is selected twice, but a trace contains each request once.")
        part = self.take(rows)
        part.timestamp = part.timestamp - part.timestamp[0] if len(part) else part.timestamp
        part.session = None if part.session is None else by_first_appearance(part.session)
        part.domain = None if part.domain is None else by_first_appearance(part.domain)
        renumber(part)
        return Trace(**fields_of(part), block_size=self.block_size, tail=self.tail, meta=self.meta)

    def window(self, start_ms: float, stop_ms: float) -> Trace:
        """The requests that arrive at start_ms or later, and before stop_ms."""
        first, last = np.searchsorted(self.timestamp, [start_ms, stop_ms])
        return self[first:last]

    def chained(self) -> Trace:
        """The same requests with ids that form a forest: a new id for each distinct (previous id, id) pair.

        Some sources hash each block without its prefix; one id can then follow several others.

        >>> from kvtrace.trace.building import toy
        >>> toy("0 1 2", "3 1 2").chained().hash_ids
        array([0, 1, 2, 3, 4, 5])
        """
        if self.is_chained:
            return self
        from .._native import forest

        columns = replace_columns(self)
        columns.hash_ids, columns.output_ids = forest.chain(
            self.hash_ids, self.offsets, self.full_blocks, self.output_ids, self.output_offsets, self.distinct
        )
        return Trace(**fields_of(columns), block_size=self.block_size, tail=self.tail, meta=self.meta)

    def require_chained(self) -> Trace:
        """This trace; InputError if its ids do not form a forest."""
        if not self.is_chained:
            raise InputError(
                "the ids do not form a forest (one id follows several others): the blocks were hashed without their "
                "prefix. Use trace.chained(), or `--chain`."
            )
        return self

    @property
    def full_blocks(self) -> np.ndarray:
        """Full blocks of each prompt, without its tail block; all blocks of stated counts are full."""
        return self.prompt_blocks if self.tail == STATED else self.input_length // self.block_size

    # -- for other libraries -------------------------------------------------------------------------------------

    def to_arrow(self) -> Any:  # pyarrow.Table; this room imports NumPy alone
        """The requests as a pyarrow Table, prompts as lists of ids; needs the `frames` extra."""
        from . import frames

        return frames.arrow(self)

    def plot(self, name: str = "overview") -> Any:
        """A plotly Figure of the trace; needs the `report` extra.

        Args:
            name: "overview", or a plot of https://github.com/kvtrace/kvtrace/blob/main/docs/report/report.md, such as
                "hit-curve", "reuse" or "arrivals".

        Raises:
            UsageError: The name is unknown, or plotly is not installed.
        """
        return drawing["figure"](self, name)

    def _repr_html_(self) -> str:
        from . import frames

        return frames.trace_html(self)

    # -- the invariants ------------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, np.ndarray]:
        """All columns by name, including extra columns."""
        named = {name: getattr(self, name) for name in _ARRAYS} | {f"extra {k}": v for k, v in self.extra.items()}
        if self.dependencies is not None:
            named |= {f"dependencies.{name}": getattr(self.dependencies, name) for name in DTYPES}
        return {name: array for name, array in named.items() if array is not None}

    def _verify(self):
        require_offsets("offsets", self.offsets, len(self), len(self.hash_ids))
        if self.output_ids is not None:
            require_offsets("output_offsets", self.output_offsets, len(self), len(self.output_ids))
        require_rows(self, self.block_size, self.tail)
        from .._native import forest

        self.distinct, gap, fork = forest.verify(
            self.hash_ids, self.offsets, self.full_blocks, self.output_ids, self.output_offsets
        )
        if gap >= 0:
            raise InputError(f"row {gap}: ids do not count 0, 1, 2, ... by first appearance. Use Trace.from_columns.")
        self.is_chained = fork < 0
        if self.tail == "unique":
            self._require_unique_tails()

    def _require_unique_tails(self):
        has_tail = self.input_length % self.block_size != 0
        tails = self.hash_ids[self.offsets[1:][has_tail] - 1]
        is_tail = np.zeros(self.distinct, dtype=bool)
        is_tail[tails] = True
        if np.count_nonzero(is_tail) == np.count_nonzero(is_tail[self.hash_ids]) == len(tails):
            return  # each is used once, without an array of all uses
        uses = np.bincount(self.hash_ids, minlength=self.distinct)
        if (shared := np.flatnonzero(uses[tails] > 1)).size:
            row = int(np.flatnonzero(has_tail)[shared[0]])
            raise InputError(f"row {row}: its tail block is shared, but tails are unique in this trace.")


_ARRAYS = ("timestamp", "input_length", "output_length", "hash_ids", "offsets", "session", "parent",
           "output_ids", "output_offsets", "domain", *NUMBERS)  # fmt: skip


def _request(columns: Columns, row: int) -> Request:
    return Request(
        float(columns.timestamp[row]), int(columns.input_length[row]), int(columns.output_length[row]),
        columns.hash_ids[columns.offsets[row] : columns.offsets[row + 1]],
        None if columns.session is None else int(columns.session[row]),
        None if columns.parent is None else int(columns.parent[row]),
    )  # fmt: skip


def first_seen(trace: Trace) -> np.ndarray:
    """Mark the blocks that appear for the first time.

    >>> from kvtrace.trace.building import toy
    >>> first_seen(toy("0 1 2", "0 1 3")).tolist()
    [True, True, True, False, False, True]
    """
    reached = np.maximum.accumulate(trace.hash_ids)
    first = np.ones(len(reached), dtype=bool)
    first[1:] = reached[1:] > reached[:-1]
    return first


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")
