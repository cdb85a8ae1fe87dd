"""A trace whose block ids stay on disk: all other columns are in memory, and ids are read piece by piece.

It reads a data set once and verifies the invariants. Functions that need only requests use it like any Trace;
functions that need blocks use `Trace.pieces`. `open_trace` opens a data set so, within a memory limit, and any other
file in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from .._base.errors import InputError, UsageError, pasted
from .._base.memory import MemoryNeed, keep_little
from .._base.step_work import report_work
from ..trace.building import TraceBuilder
from ..trace.columns import NUMBERS, STATED, Columns
from ..trace.dependencies import Dependencies, join_dependencies
from ..trace.invariants import require_rows
from ..trace.normalise import Fixes, by_first_appearance
from ..trace.trace import Trace
from . import dataset as datasets
from . import memory_needs, reading
from .dataset import Dataset

REFERENCES = 1 << 18  # block references in a piece, to bound what is derived from it
MISSING: dict[str, float] = {"session": -1, "parent": -1, "domain": -1}  # column -> value where there is none
MISSING |= {name: number.unknown for name, number in NUMBERS.items()}
REMEDY = "A data set is not normalised when it is streamed. Normalise it with kvtrace.read and kvtrace.write."


class LazyTrace(Trace):
    """A data set as a Trace without `hash_ids`, or with them as int32 if `ids` is set.

    `extra` names the extra columns to read, None = all. InputError if the rows break an invariant: a stream is not
    normalised.
    """

    dataset: Dataset

    def __init__(
        self, dataset: Dataset, *, ids: bool = False, extra: tuple[str, ...] | None = None, references=REFERENCES
    ):
        self.dataset, self.block_size, self.tail = dataset, dataset.block_size, dataset.tail
        self.meta, self.fixes, self._references = dataset.meta, Fixes(), references
        problem = None
        try:
            self._read(ids, extra)
        except InputError as error:
            problem = str(error)
        if problem:  # raised outside the handler, to free the first error's frames
            raise InputError(problem if problem.startswith(dataset.path) else f"{dataset.path}: {problem} {REMEDY}")

    @property
    def working_set(self) -> int:
        """Distinct blocks of the prompts."""
        return self._working_set

    @property
    def first_blocks(self) -> np.ndarray:
        """The first block of each prompt that has any."""
        return self._first_blocks

    def pieces(self) -> Iterator[tuple[slice, Columns]]:
        """Read the rows again, piece by piece."""
        start = 0
        for columns in self.dataset.chunks(self._references, extra="ignore"):
            yield slice(start, start + len(columns)), columns
            start += len(columns)

    def _read(self, ids, extra):
        walk, rest, firsts, row = _Walk(self.dataset), TraceBuilder(), [np.empty(0, np.int32)], 0
        waits: list[tuple[int, Dependencies | None]] = []
        self._allot(len(self.dataset), ids)
        same: dict[str, str] = {}  # one object for each distinct string
        for columns in self.dataset.chunks(self._references, extra="ignore" if extra == () else "keep"):
            walk.verify(columns, row)
            report_work(len(columns), len(self.dataset))
            firsts.append(columns.hash_ids[columns.offsets[:-1][np.diff(columns.offsets) > 0]].astype(np.int32))
            self._put(columns, row, ids)
            waits.append((len(columns), columns.dependencies))
            if extra != ():
                rest.add(_extra_alone(columns, extra, same))
            row += len(columns)
        if walk.distinct != self.dataset.distinct:
            raise InputError(f"distinct_blocks is {self.dataset.distinct:,}, but the parts have {walk.distinct:,}.")
        self.distinct, self.is_chained, self._working_set = walk.distinct, walk.is_chained, walk.working_set
        del walk
        self.dependencies = join_dependencies(waits)
        self._first_blocks, self.extra = np.concatenate(firsts), rest.columns().extra
        self._verify()

    def _allot(self, rows, ids):
        """Allocate the columns."""
        self.timestamp = np.empty(rows)
        self.input_length, self.output_length = (np.empty(rows, dtype=np.int64) for _ in range(2))
        self.offsets = np.zeros(rows + 1, dtype=np.int64)
        self.output_offsets = None
        for name in MISSING:
            setattr(self, name, None)
        if ids:
            self.hash_ids = np.empty(self.dataset.blocks, dtype=np.int32)

    def _put(self, columns, row, ids):
        """Store the next rows, the first of which is `row`."""
        rows, ends = slice(row, row + len(columns)), slice(row + 1, row + len(columns) + 1)
        for name in ("timestamp", "input_length", "output_length"):
            getattr(self, name)[rows] = getattr(columns, name)
        for name, missing in MISSING.items():
            if (values := getattr(columns, name)) is not None:
                if getattr(self, name) is None:
                    setattr(self, name, np.full(len(self), missing))
                getattr(self, name)[rows] = values
        self.offsets[ends] = self.offsets[row] + columns.offsets[1:]
        if columns.output_offsets is not None and self.output_offsets is None:
            self.output_offsets = np.zeros(len(self) + 1, dtype=np.int64)
        if self.output_offsets is not None:
            blocks = 0 if columns.output_offsets is None else columns.output_offsets[1:]
            self.output_offsets[ends] = self.output_offsets[row] + blocks
        if ids:
            self.hash_ids[self.offsets[row] : self.offsets[rows.stop]] = columns.hash_ids

    def _verify(self):
        """The invariants but for those of the ids, which were looked at on the way."""
        require_rows(self, self.block_size, self.tail, hints={})
        if self.session is not None:
            self.session = by_first_appearance(self.session)
        if self.domain is not None:
            self.domain = by_first_appearance(self.domain)


class _Walk:
    """A pass over all rows that verifies that ids count by first appearance and form a forest."""

    def __init__(self, dataset):
        from .._native import forest

        self._forest, self._block_size, self._tail = forest, dataset.block_size, dataset.tail
        self._parent = np.full(dataset.distinct, forest.UNSEEN, dtype=np.int64)
        self._in_prompts = np.zeros(dataset.distinct if dataset.output_blocks else 0, dtype=bool)
        self._has_outputs = bool(dataset.output_blocks)
        self.distinct, self.is_chained = 0, True

    def verify(self, columns: Columns, row: int) -> None:
        """Verify the next rows, the first of which is `row`; InputError if ids do not count by first appearance."""
        self.distinct, gap, fork = self._forest.verify(
            columns.hash_ids, columns.offsets, self._full_blocks(columns),
            columns.output_ids, columns.output_offsets, self._parent, self.distinct,
        )  # fmt: skip
        if gap >= 0:
            raise InputError(f"row {row + gap}: ids do not count 0, 1, 2, ... by first appearance.")
        self.is_chained = self.is_chained and fork < 0
        if self._has_outputs:
            self._in_prompts[columns.hash_ids] = True

    def _full_blocks(self, columns: Columns) -> np.ndarray:
        return np.diff(columns.offsets) if self._tail == STATED else columns.input_length // self._block_size

    @property
    def working_set(self) -> int:
        return int(np.count_nonzero(self._in_prompts)) if self._has_outputs else self.distinct


def _extra_alone(columns, extra, same) -> Columns:
    """The extra columns of a piece, with equal strings as one object."""
    extra_columns = {
        name: _shared(values, same) for name, values in columns.extra.items() if extra is None or name in extra
    }
    nothing = np.empty(0, dtype=np.int64)
    times, lengths = columns.timestamp, columns.input_length  # for their length
    return Columns(times, lengths, lengths, nothing, np.zeros(len(times) + 1, dtype=np.int64), extra=extra_columns)


def _shared(values, same) -> np.ndarray:
    if values.dtype != object:
        return values
    for row, value in enumerate(values):
        if type(value) is str:
            values[row] = same.setdefault(value, value)
    return values


DOMAINS = "the column domain"  # its views need all ids at once


def open_trace(
    path: str | Path | Trace,
    *,
    block_size: int | None = None,
    extra: tuple[str, ...] | None = None,
    ids: bool = False,
    chain: bool = False,
    whole: str | None = None,
    memory: int | None = None,
    need: Callable[[Dataset], MemoryNeed] | None = None,
    on_need: Callable[[MemoryNeed], None] | None = None,
) -> Trace:
    """Open a trace: a data set as a stream of pieces, unless all of it is needed; any other file in memory.

    Args:
        path: The file, the data set, or `-` for stdin; a Trace is returned as it is.
        block_size: Tokens per block. Default: from the sidecar, else inferred.
        extra: The extra columns that are needed of a data set; an empty tuple leaves them out of any trace.
        ids: Also keep the ids of a data set in memory, as 32-bit numbers.
        chain: Re-chain ids that were hashed without their prefix; a data set is then read whole.
        whole: The option that needs a data set whole, such as `--fold`.
        memory: Bytes that a data set may need.
        need: The memory that the computation needs for a data set; `formats.memory_needs` has those of the commands.
        on_need: Receives that memory before the first row is read.

    Returns:
        A Trace, or a `LazyTrace` that `analyze`, `hit_curve` and simulations read piece by piece. A data set with
        isolation domains is read whole.

    Raises:
        UsageError: The data set may need more memory, `memory` is given for another file, or the block size is not
            that of the data set.
        InputError: The file is not a valid trace.

    >>> import tempfile, kvtrace
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = kvtrace.write(toy("0 1", "0 2", block_size=4), f"{folder}/day.dataset")
    ...     trace = open_trace(f"{folder}/day.dataset", memory=10**9, need=memory_needs.analyzing, on_need=print)
    ...     kvtrace.analysis.analyze(trace).basics.hits.block_hit_rate
    needs at most 201 MB: 200 MB for the program and a piece
    0.25
    """
    path = path if isinstance(path, Trace) else reading.trace_at(path)
    dataset = dataset_at(path, block_size=block_size, memory=memory)
    whole = "--chain" if chain else whole
    if dataset is not None:
        whole = whole or (DOMAINS if "domain" in dataset.names() else None)
        bound = memory_needs.whole(dataset, whole) if whole else need(dataset) if need else None
        if bound is not None:
            require_memory(bound, memory, on_need)
        if not whole:
            return LazyTrace(dataset, ids=ids, extra=extra)
    trace = reading.read(path, block_size=block_size, extra="ignore" if extra == () else "keep")
    return trace.chained() if chain else trace


def dataset_at(path: str | Path | Trace, *, block_size: int | None = None, memory: int | None = None) -> Dataset | None:
    """The data set at a path, or None for any other trace; UsageError if `block_size` or `memory` does not fit it."""
    if isinstance(path, Trace):
        if memory is not None:
            raise UsageError("--memory needs the path of a data set, but this is a Trace in memory.")
        return None
    if not datasets.is_dataset(path):
        if memory is not None:
            raise UsageError(
                f"--memory needs a data set, but {path} is a single file. "
                f"Try `kvtrace convert {pasted(path)} -o FOLDER/`."
            )
        return None
    keep_little()
    dataset = datasets.open_dataset(path)
    if block_size not in (None, dataset.block_size):
        raise UsageError(
            f"{path}: the block size in the manifest is {dataset.block_size}, not {block_size}. Omit --block-size."
        )
    return dataset


def require_memory(need: MemoryNeed, memory: int | None, on_need: Callable[[MemoryNeed], None] | None = None) -> None:
    """Pass a need on; UsageError if it exceeds the limit."""
    need.require(memory)
    if on_need:
        on_need(need)
