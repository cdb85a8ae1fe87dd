"""Trace: LLM requests as columns, and their prompts' blocks as one long array of ids.

Five invariants are checked when a Trace is made and relied on everywhere after; docs/design.md lists them.
`Columns` are the same arrays before anybody checked them: what a reader found, or what a writer takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._base.errors import InputError, UsageError

TAILS = ("kept", "unique", "dropped")  # what the last, partial block of a prompt is: shared, never shared, left out


@dataclass(eq=False, repr=False)
class Columns:
    """The columns of a trace, not yet verified.

    >>> Columns([0.0], [5], [1], [7, 8], [0, 2]).hash_ids
    array([7, 8])
    """

    timestamp: np.ndarray  # request -> ms, float64
    input_length: np.ndarray  # request -> tokens, int64
    output_length: np.ndarray  # request -> tokens, int64
    hash_ids: np.ndarray  # block reference -> id, prompts end to end, int64
    offsets: np.ndarray  # prompt r is hash_ids[offsets[r]:offsets[r + 1]], int64
    session: np.ndarray | None = None  # request -> conversation, -1 = none
    parent: np.ndarray | None = None  # request -> row of the previous turn, -1 = root
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # carried, not interpreted
    output_ids: np.ndarray | None = None  # the output's blocks, continuing the prompt's chain
    output_offsets: np.ndarray | None = None

    def __post_init__(self):
        self.timestamp = _column(self.timestamp, np.float64)
        for name in ("input_length", "output_length", "hash_ids", "offsets"):
            setattr(self, name, _column(getattr(self, name), np.int64))
        for name in ("session", "parent", "output_ids", "output_offsets"):
            if getattr(self, name) is not None:
                setattr(self, name, _column(getattr(self, name), np.int64))
        self.extra = {name: _column(values, None) for name, values in self.extra.items()}

    def __len__(self) -> int:
        return len(self.timestamp)

    def take(self, rows: np.ndarray) -> Columns:
        """The given rows, in the given order; parents follow their rows, and a parent left behind becomes -1."""
        rows = np.asarray(rows, dtype=np.int64)
        hash_ids, offsets = _take_ragged(self.hash_ids, self.offsets, rows)
        output_ids = output_offsets = None
        if self.output_ids is not None:
            output_ids, output_offsets = _take_ragged(self.output_ids, self.output_offsets, rows)
        return Columns(
            self.timestamp[rows], self.input_length[rows], self.output_length[rows], hash_ids, offsets,
            session=None if self.session is None else self.session[rows],
            parent=None if self.parent is None else _moved_parents(self.parent, rows),
            extra={name: values[rows] for name, values in self.extra.items()},
            output_ids=output_ids, output_offsets=output_offsets,
        )  # fmt: skip


@dataclass
class Repairs:
    """What had to be mended to make a Trace of a file's columns: counts, 0 where nothing was."""

    rows_moved: int = 0  # rows that stood before a row with an earlier time
    first_timestamp: float = 0.0  # ms taken off every time, so that the first is 0
    renumbered: bool = False  # ids were not 0, 1, 2, ... in order of first appearance
    dangling_parents: int = 0  # parents that no row holds, or that come later: read as -1

    def __str__(self):
        said = []
        if self.rows_moved:
            said.append(f"{self.rows_moved:,} rows were out of time order and were sorted")
        if self.first_timestamp:
            said.append(f"times begin at {self.first_timestamp:,g} ms and were counted from 0")
        if self.renumbered:
            said.append("ids were renumbered by first appearance")
        if self.dangling_parents:
            said.append(f"{self.dangling_parents:,} dangling parents were read as -1")
        return "; ".join(said)


class Trace(Columns):
    """LLM requests in time order, their prompts as block ids that form a forest.

    The arrays are read-only, and the invariants hold; InputError says which row breaks which.

    >>> trace = toy("0 1 2", "0 1 3")
    >>> trace
    Trace(2 requests, 6 blocks, 4 distinct, block_size=1, tail=kept)
    >>> trace.prompt(1)
    array([0, 1, 3])
    """

    block_size: int  # tokens per block
    tail: str  # one of TAILS
    distinct: int  # number of distinct ids, the output's included
    is_chained: bool  # invariant 5: every id always follows the same id
    meta: dict[str, Any]  # where the trace comes from: what a sidecar file holds
    repairs: Repairs

    def __init__(self, *columns, block_size: int, tail: str = "kept", meta: Mapping | None = None, **named):
        super().__init__(*columns, **named)
        self.block_size, self.tail = _block_size(block_size), tail
        self.meta, self.repairs = dict(meta or {}), Repairs()
        if tail not in TAILS:
            raise UsageError(f"tail is {tail!r}; it is one of {', '.join(TAILS)}.")
        self._verify()
        for array in self._arrays().values():
            array.flags.writeable = False

    @classmethod
    def from_columns(cls, columns: Columns, *, block_size: int, tail: str = "kept", meta=None) -> Trace:
        """A Trace of columns as they were found: rows sorted by time, times from 0, ids renumbered.

        `repairs` of the result counts what was mended.
        """
        mended, repairs = mend(columns)
        trace = cls(**_fields(mended), block_size=block_size, tail=tail, meta=meta)
        trace.repairs = repairs
        return trace

    # -- looking in ----------------------------------------------------------------------------------------------

    def __repr__(self):
        return (
            f"Trace({len(self):,} requests, {len(self.hash_ids):,} blocks, {self.distinct:,} distinct, "
            f"block_size={self.block_size}, tail={self.tail}{'' if self.is_chained else ', not chained'})"
        )

    def __eq__(self, other):
        """Equal columns, block size and tail; where a trace comes from (`meta`) does not count."""
        if not isinstance(other, Trace):
            return NotImplemented
        mine, theirs = self._arrays(), other._arrays()
        return (
            (self.block_size, self.tail) == (other.block_size, other.tail)
            and mine.keys() == theirs.keys()
            and all(_same(mine[name], theirs[name]) for name in mine)
        )

    __hash__ = None  # type: ignore[assignment]

    def prompt(self, row: int) -> np.ndarray:
        """The ids of one request's prompt, root first."""
        row = range(len(self))[row]
        return self.hash_ids[self.offsets[row] : self.offsets[row + 1]]

    @property
    def prompt_blocks(self) -> np.ndarray:
        """Blocks of each prompt.

        >>> toy("0 1 2", "0 3").prompt_blocks
        array([3, 2])
        """
        return np.diff(self.offsets)

    @property
    def working_set(self) -> int:
        """Distinct blocks of the prompts.

        >>> toy("0 1 2", "0 3").working_set
        4
        """
        return self.distinct if self.output_ids is None else int((np.bincount(self.hash_ids) > 0).sum())

    # -- cutting and joining -------------------------------------------------------------------------------------

    def __getitem__(self, key) -> Trace:
        """The requests of a slice, of a boolean mask, or with the given row numbers, as a trace of its own.

        >>> toy("0 1", "0 2", "0 2 3")[1:].hash_ids
        array([0, 1, 0, 1, 2])
        """
        if isinstance(key, slice):
            return self.select(np.arange(len(self))[key])
        key = np.asarray(key)
        if key.dtype == bool:
            if len(key) != len(self):
                raise UsageError(f"the mask has {len(key):,} values for {len(self):,} requests.")
            return self.select(np.flatnonzero(key))
        return self.select(key)

    def select(self, rows: Iterable[int] | np.ndarray) -> Trace:
        """The given rows in time order: ids renumbered, times from 0, lost parents -1, sessions numbered anew."""
        rows = np.asarray(rows)
        if rows.size == 0:
            rows = rows.astype(np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise UsageError("rows are selected by whole row numbers, a slice or a boolean mask; try trace[3:5].")
        if len(rows) and (rows.min() < -len(self) or rows.max() >= len(self)):
            raise UsageError(f"row {rows.max() if rows.max() >= len(self) else rows.min()} of {len(self):,} requests.")
        rows = np.sort(np.where(rows < 0, rows + len(self), rows))
        if len(rows) > 1 and (np.diff(rows) == 0).any():
            raise UsageError("a row was selected twice; a trace holds each request once.")
        part = self.take(rows)
        part.timestamp = part.timestamp - part.timestamp[0] if len(part) else part.timestamp
        part.session = None if part.session is None else by_first_appearance(part.session)
        renumber(part)
        return Trace(**_fields(part), block_size=self.block_size, tail=self.tail, meta=self.meta)

    def window(self, start_ms: float, stop_ms: float) -> Trace:
        """The requests that arrive from start_ms up to, not including, stop_ms."""
        first, last = np.searchsorted(self.timestamp, [start_ms, stop_ms])
        return self[first:last]

    def chained(self) -> Trace:
        """The same requests with ids that form a forest: a new id for each distinct (previous id, id) pair.

        Some sources hash each block by itself, without its prefix; then one id can follow several others.

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
        return Trace(**_fields(columns), block_size=self.block_size, tail=self.tail, meta=self.meta)

    def require_chained(self) -> Trace:
        """This trace, if its ids form a forest; InputError if not."""
        if not self.is_chained:
            raise InputError(
                "the ids do not form a forest (one id follows several others), so its blocks were hashed without "
                "their prefix. Try trace.chained(), or `--chain`."
            )
        return self

    @property
    def full_blocks(self) -> np.ndarray:
        """Full blocks of each prompt: the tail is not one of them."""
        return self.input_length // self.block_size

    # -- for other libraries -------------------------------------------------------------------------------------

    def to_pandas(self):
        """The requests as a pandas DataFrame, prompts as arrays of ids; needs the `frames` extra."""
        from . import frames

        return frames.pandas(frames.arrow(self))

    def to_polars(self):
        """The requests as a Polars DataFrame, prompts as lists of ids; needs the `frames` extra."""
        from . import frames

        return frames.polars(frames.arrow(self))

    def __arrow_c_stream__(self, requested_schema=None):
        from . import frames

        return frames.arrow(self).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        from . import frames

        return frames.trace_html(self)

    # -- the invariants ------------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, np.ndarray]:
        """All columns by name, those of `extra` too."""
        named = {name: getattr(self, name) for name in _ARRAYS} | {f"extra {k}": v for k, v in self.extra.items()}
        return {name: array for name, array in named.items() if array is not None}

    def _verify(self):
        rows = len(self)
        for name in ("input_length", "output_length", "session", "parent"):
            verify_rows(name, getattr(self, name), rows)
        for name, values in self.extra.items():
            verify_rows(f"extra column {name!r}", values, rows)
        _verify_offsets("offsets", self.offsets, rows, len(self.hash_ids))
        verify_lengths(self)
        if self.output_ids is not None:
            _verify_offsets("output_offsets", self.output_offsets, rows, len(self.output_ids))
            verify_outputs(self)
        if rows and not np.isfinite(self.timestamp).all():
            raise InputError(f"row {np.flatnonzero(~np.isfinite(self.timestamp))[0]}: the timestamp is not finite.")
        if rows and self.timestamp[0] != 0:
            raise InputError(f"times begin at {self.timestamp[0]:g} ms; they count from the first request.")
        if (falls := np.flatnonzero(np.diff(self.timestamp) < 0)).size:
            raise InputError(f"row {falls[0] + 1}: the timestamp falls; rows of a trace are in time order.")
        if self.parent is not None and (self.parent >= np.arange(rows)).any():
            row = int(np.flatnonzero(self.parent >= np.arange(rows))[0])
            raise InputError(f"row {row}: its parent is not an earlier row.")
        from .._native import forest

        self.distinct, gap, fork = forest.verify(
            self.hash_ids, self.offsets, self.full_blocks, self.output_ids, self.output_offsets
        )
        if gap >= 0:
            raise InputError(f"row {gap}: ids are not 0, 1, 2, ... by first appearance. Try Trace.from_columns.")
        self.is_chained = fork < 0
        if self.tail == "unique":
            _verify_unique_tails(self)


_ARRAYS = ("timestamp", "input_length", "output_length", "hash_ids", "offsets", "session", "parent",
           "output_ids", "output_offsets")  # fmt: skip


def toy(*prompts: str, block_size: int = 1, gap_ms: float = 1.0) -> Trace:
    """A small trace for examples and tests: one prompt a string, its ids apart by spaces, all blocks full.

    >>> toy("0 1", "0 2").input_length
    array([2, 2])
    """
    ids = [[int(word) for word in prompt.split()] for prompt in prompts]
    blocks = np.array([len(row) for row in ids], dtype=np.int64)
    columns = Columns(
        np.arange(len(ids)) * gap_ms, blocks * block_size, np.ones(len(ids)),
        np.array([block for row in ids for block in row], dtype=np.int64), np.concatenate([[0], np.cumsum(blocks)]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=block_size)


def concat(traces: Iterable[Trace], *, shared: bool = False, overlay: bool = False, gap_ms: float = 0.0) -> Trace:
    """Several traces as one; their ids stay disjoint unless `shared` says that equal ids mean equal blocks.

    Each trace begins gap_ms after the last request of the one before it, or all begin together (`overlay`).
    Sessions stay disjoint. A column that only some of the traces have is -1 or None where it is missing.

    >>> concat([toy("0 1"), toy("0 2")]).hash_ids
    array([0, 1, 2, 3])
    >>> concat([toy("0 1"), toy("0 1 2")], shared=True).hash_ids
    array([0, 1, 0, 1, 2])
    """
    traces = list(traces)
    if not traces:
        raise UsageError("there is no trace to concatenate.")
    if len({(trace.block_size, trace.tail) for trace in traces}) > 1:
        kinds = sorted({f"{trace.block_size} ({trace.tail} tails)" for trace in traces})
        raise UsageError(f"traces of different block sizes cannot be concatenated: {', '.join(kinds)}.")
    builder = TraceBuilder()
    start, first_id, first_session, first_row = 0.0, 0, 0, 0
    for trace in traces:
        part = replace_columns(trace)
        part.timestamp = part.timestamp + start
        part.hash_ids = part.hash_ids + first_id
        part.output_ids = None if part.output_ids is None else part.output_ids + first_id
        part.session = None if part.session is None else np.where(part.session < 0, -1, part.session + first_session)
        part.parent = None if part.parent is None else np.where(part.parent < 0, -1, part.parent + first_row)
        builder.add(part)
        start = start if overlay or not len(trace) else float(part.timestamp[-1]) + gap_ms
        first_id += 0 if shared else trace.distinct
        first_session += 0 if trace.session is None or not len(trace) else int(trace.session.max()) + 1
        first_row += len(trace)
    return builder.finish(block_size=traces[0].block_size, tail=traces[0].tail)


class TraceBuilder:
    """Gathers columns chunk by chunk, and makes one Trace of them.

    >>> builder = TraceBuilder()
    >>> builder.add(Columns([0.0], [2], [1], [5, 6], [0, 2]))
    >>> builder.add(Columns([9.0], [2], [1], [5, 7], [0, 2]))
    >>> builder.finish(block_size=1).hash_ids
    array([0, 1, 0, 2])
    """

    def __init__(self):
        self._chunks: list[Columns] = []

    def add(self, columns: Columns) -> None:
        """Append rows; their `parent`, if any, holds row numbers of the whole."""
        self._chunks.append(columns)

    def columns(self) -> Columns:
        """All rows so far as one set of columns, as they were added."""
        chunks = [chunk for chunk in self._chunks if len(chunk)] or self._chunks[:1]
        if not chunks:
            nothing = np.empty(0)
            return Columns(nothing, nothing, nothing, nothing, np.zeros(1))
        if len(chunks) == 1:
            return chunks[0]
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(chunk, name) for chunk in chunks])
            for name in ("timestamp", "input_length", "output_length", "hash_ids")
        }
        joined["offsets"] = _join_offsets([chunk.offsets for chunk in chunks])
        for name in ("session", "parent"):
            joined[name] = _join_optional(chunks, name)
        if any(chunk.output_ids is not None for chunk in chunks):
            joined["output_ids"] = np.concatenate([c.output_ids for c in chunks if c.output_ids is not None])
            joined["output_offsets"] = _join_offsets(
                [np.zeros(len(c) + 1, np.int64) if c.output_offsets is None else c.output_offsets for c in chunks]
            )
        names = dict.fromkeys(name for chunk in chunks for name in chunk.extra)
        joined["extra"] = {name: _join_extra(chunks, name) for name in names}
        return Columns(**joined)

    def finish(self, *, block_size: int, tail: str = "kept", meta=None) -> Trace:
        """One Trace of all rows: sorted by time, times from 0, ids renumbered."""
        return Trace.from_columns(self.columns(), block_size=block_size, tail=tail, meta=meta)


def mend(columns: Columns) -> tuple[Columns, Repairs]:
    """The columns with rows in time order (stable), times from 0, ids and sessions by first appearance."""
    repairs, columns = Repairs(), replace_columns(columns)
    _verify_offsets("offsets", columns.offsets, len(columns), len(columns.hash_ids))
    if not (columns.timestamp[1:] >= columns.timestamp[:-1]).all():
        reached = np.maximum.accumulate(columns.timestamp)
        repairs.rows_moved = int((columns.timestamp < reached).sum())
        columns = columns.take(np.argsort(columns.timestamp, kind="stable"))
    if len(columns) and columns.timestamp[0] != 0:
        repairs.first_timestamp = float(columns.timestamp[0])
        columns.timestamp = columns.timestamp - columns.timestamp[0]
    if columns.parent is not None:
        dangling = columns.parent >= np.arange(len(columns))
        repairs.dangling_parents = int(dangling.sum())
        columns.parent = np.where(dangling, -1, columns.parent)
    if columns.session is not None:
        columns.session = by_first_appearance(columns.session)
    repairs.renumbered = renumber(columns)
    return columns, repairs


def replace_columns(columns: Columns, **changed) -> Columns:
    """Plain columns that share the given ones' arrays, some of them changed."""
    return replace(Columns(**_fields(columns)), **changed)


def first_seen(trace: Trace) -> np.ndarray:
    """True where a block appears for the first time.

    >>> first_seen(toy("0 1 2", "0 1 3")).tolist()
    [True, True, True, False, False, True]
    """
    reached = np.maximum.accumulate(trace.hash_ids)
    first = np.ones(len(reached), dtype=bool)
    first[1:] = reached[1:] > reached[:-1]
    return first


# -- helpers, in the order of their use --------------------------------------------------------------------------


def _column(values, dtype) -> np.ndarray:
    array = np.asarray(values)
    if dtype is np.int64 and array.dtype.kind == "u" and array.dtype.itemsize == 8:
        array = array.view(np.int64)  # 64-bit hashes keep their bits
    elif dtype is np.int64 and array.dtype.kind == "f" and array.size and not (array == np.floor(array)).all():
        raise InputError("a column of whole numbers holds a fraction.")
    return np.ascontiguousarray(array, dtype=dtype).view()


def _fields(columns: Columns) -> dict[str, Any]:
    return {name: getattr(columns, name) for name in Columns.__dataclass_fields__}


def _take_ragged(values, offsets, rows):
    from .._native import ragged

    return ragged.take(values, offsets, rows)


def _moved_parents(parent, rows):
    moved = np.full(len(parent) + 1, -1, dtype=np.int64)  # old row -> new row; the last is for -1
    moved[rows] = np.arange(len(rows))
    return moved[parent[rows]]


def by_first_appearance(session: np.ndarray) -> np.ndarray:
    """Sessions renumbered 0, 1, 2, ... in order of first appearance; -1 stays."""
    from .._native import ids

    inside = session >= 0
    numbered = np.full(len(session), -1, dtype=np.int64)
    numbered[inside] = ids.renumber(session[inside])[0]
    return numbered


def renumber(columns: Columns) -> bool:
    """Renumber the ids by first appearance, each row's prompt before its output; True if any changed."""
    from .._native import ids

    if columns.output_ids is None:
        if ids.is_numbered(columns.hash_ids):
            return False  # and no second array of all ids
        columns.hash_ids = ids.renumber(columns.hash_ids)[0]
        return True
    prompts, before = len(columns.hash_ids), np.concatenate([columns.hash_ids, columns.output_ids])
    found = ids.renumber(before)[0].astype(np.int32)
    columns.hash_ids, columns.output_ids = ids.number_rows(
        found[:prompts], columns.offsets, np.arange(len(columns)), found[prompts:], columns.output_offsets
    )
    return not np.array_equal(before, np.concatenate([columns.hash_ids, columns.output_ids]))


def _block_size(block_size) -> int:
    if not isinstance(block_size, (int, np.integer)) or isinstance(block_size, bool) or block_size < 1:
        raise UsageError(f"block size is {block_size!r}; it is a whole number of tokens, 1 or more.")
    return int(block_size)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")


def verify_rows(name, values, rows):
    """InputError unless a column has so many rows of plain values."""
    if values is None:
        return
    if values.shape != (rows,):
        raise InputError(f"{name} has {values.size:,} values for {rows:,} requests.")
    if name.endswith("length") and rows and values.min() < 0:
        raise InputError(f"row {int(np.argmax(values < 0))}: {name} is negative.")


def _verify_offsets(name, offsets, rows, references):
    if offsets is None or offsets.shape != (rows + 1,):
        raise InputError(f"{name} has {0 if offsets is None else offsets.size:,} values for {rows:,} requests.")
    if offsets[0] != 0 or offsets[-1] != references or (np.diff(offsets) < 0).any():
        raise InputError(f"{name} do not rise from 0 to {references:,}, the number of block references.")


def expected_blocks(tokens: np.ndarray, block_size: int, tail: str) -> np.ndarray:
    """Blocks that so many tokens fill: the partial one counts unless tails are dropped."""
    return tokens // block_size if tail == "dropped" else -(-tokens // block_size)


def verify_lengths(trace):
    """InputError unless prompts have the blocks that their lengths give."""
    expected = expected_blocks(trace.input_length, trace.block_size, trace.tail)
    wrong = np.flatnonzero(np.diff(trace.offsets) != expected)
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"row {row}: {trace.offsets[row + 1] - trace.offsets[row]:,} hash_ids for {trace.input_length[row]:,} "
            f"tokens; at block size {trace.block_size} that prompt has {expected[row]:,}. Try another block size."
        )


def expected_output_blocks(trace) -> np.ndarray:
    """Blocks of each output: those of prompt and output together, less the prompt's full ones."""
    both = expected_blocks(trace.input_length + trace.output_length, trace.block_size, trace.tail)
    return both - trace.full_blocks


def verify_outputs(trace):
    """InputError unless outputs have no blocks, or those that lengths give."""
    blocks = np.diff(trace.output_offsets)
    wrong = np.flatnonzero((blocks != 0) & (blocks != expected_output_blocks(trace)))
    if wrong.size:
        raise InputError(f"row {int(wrong[0])}: {blocks[wrong[0]]:,} output blocks do not fit its output_length.")


def _verify_unique_tails(trace):
    has_tail = trace.input_length % trace.block_size != 0
    tails = trace.hash_ids[trace.offsets[1:][has_tail] - 1]
    uses = np.bincount(trace.hash_ids, minlength=trace.distinct)
    if (shared := np.flatnonzero(uses[tails] > 1)).size:
        row = int(np.flatnonzero(has_tail)[shared[0]])
        raise InputError(f"row {row}: its tail block is shared, in a trace whose tails are unique.")


def _join_offsets(parts):
    ends = np.cumsum([0] + [part[-1] for part in parts])
    return np.concatenate([[0]] + [part[1:] + end for part, end in zip(parts, ends[:-1], strict=True)])


def _join_optional(chunks, name):
    if all(getattr(chunk, name) is None for chunk in chunks):
        return None
    return np.concatenate(
        [np.full(len(c), -1, np.int64) if getattr(c, name) is None else getattr(c, name) for c in chunks]
    )


def _join_extra(chunks, name):
    parts = [chunk.extra.get(name) for chunk in chunks]
    kinds = {None if part is None else part.dtype.kind for part in parts}
    if len(kinds) > 1:  # missing here or of another kind there: only objects can hold both
        parts = [
            np.full(len(c), None, object) if part is None else part.astype(object)
            for c, part in zip(chunks, parts, strict=True)
        ]
    return np.concatenate(parts)
