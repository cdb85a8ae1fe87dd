"""The requests of an audited file and their blocks, piece by piece: ids become numbers, rows become requests.

Ids are numbered by first appearance. Ids that already count up so, from any first id, need no memory. Others need a
table of ID_BYTES for each distinct id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.arrays import GrowingArray, mix, offsets_of
from ..._base.errors import InputError, UsageError
from ...trace.columns import Columns
from ..allowed_values import IDENTIFIER


@dataclass(eq=False)
class AuditedRequests:
    """The rows of a file that are valid requests, in time order: the columns of a Trace without the blocks."""

    timestamp: np.ndarray  # ms since the first
    input_length: np.ndarray
    output_length: np.ndarray
    session: np.ndarray | None
    parent: np.ndarray | None  # request, -1 = none
    block_size: int
    tail: str
    rows: np.ndarray  # request -> row of the file
    in_order: bool  # whether the file's rows are in time order

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def full_blocks(self) -> np.ndarray:
        """Full blocks of each prompt, without its tail block."""
        return self.input_length // self.block_size

    @property
    def has_sessions(self) -> bool:
        """Whether the session of any request is known."""
        return self.session is not None and bool((self.session >= 0).any())


@dataclass
class RequestBlocks:
    """The blocks of some requests, numbered by first appearance in the file."""

    requests: np.ndarray  # row here -> request
    numbers: np.ndarray
    offsets: np.ndarray
    output_numbers: np.ndarray | None = None
    output_offsets: np.ndarray | None = None

    def columns(self) -> Columns:
        """The numbers as the ids of Columns, whose other columns are empty."""
        nothing = np.empty(0, dtype=np.int64)
        return Columns(
            nothing, nothing, nothing, self.numbers, self.offsets,
            output_ids=self.output_numbers, output_offsets=self.output_offsets,
        )  # fmt: skip

    def segments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(numbers, offsets) of the prompts, and of the outputs if they have blocks."""
        prompts = [(self.numbers, self.offsets)]
        if self.output_numbers is None or self.output_offsets is None:
            return prompts
        return [*prompts, (self.output_numbers, self.output_offsets)]


ID_BYTES = 64  # a distinct id in the table, including the table's growth


class IdNumbers:
    """Numbers ids 0, 1, 2, ... by first appearance; UsageError if that needs a table of more than `max_ids` ids.

    >>> numbers = IdNumbers()
    >>> numbers.see(np.array([7, 8, 7])), numbers.see(np.array([3, 8]))
    (array([0, 1, 0]), array([2, 1]))
    >>> numbers.distinct, numbers.smallest, numbers.largest, numbers.in_order
    (3, 3, 8, False)
    """

    distinct: int
    smallest: int
    largest: int
    in_order: bool

    def __init__(self, max_ids: int | None = None) -> None:
        self._max_ids, self.distinct = max_ids, 0
        self.smallest = self.largest = 0  # of the ids
        self.in_order = True  # each new id is greater than all ids before it
        self._first = 0  # the first id
        self._index: Any = None  # the table, if ids are not contiguous
        self._raw: list[np.ndarray] = []

    @property
    def are_dense(self) -> bool:
        """Whether the ids are contiguous by first appearance, so that no table is needed."""
        return self._index is None

    @property
    def raw(self) -> np.ndarray:
        """The distinct ids that look like digests."""
        return np.concatenate([np.empty(0, np.int64), *self._raw])

    def see(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of more ids (int64); new ids get the next numbers."""
        if not len(ids):
            return np.empty(0, dtype=np.int64)
        if not self.distinct:
            self._first = self.smallest = self.largest = ids.item(0)
        from ..._native.numbering import count_on

        before = self.distinct
        if self._index is None:
            if (distinct := count_on(ids, self._first, before)) >= 0:
                self.distinct = distinct
                self._note(np.arange(before, self.distinct) + np.int64(self._first))
                return ids - np.int64(self._first)  # wraps, and adding the first id wraps back
            self._make_index()
        numbers = self._in_index(ids)
        self.distinct = self._index.distinct
        self._require_memory()
        fresh, new = np.empty(self.distinct - before, dtype=np.int64), numbers >= before
        fresh[numbers[new][::-1] - before] = ids[new][::-1]
        self._note(fresh)
        return numbers

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of ids that were seen before (int64); InputError for others."""
        numbers = ids - np.int64(self._first) if self._index is None else self._in_index(ids)
        if len(ids) and not (numbers.min() >= 0 and numbers.max() < self.distinct):
            raise InputError("the file changed during the audit. Audit it again when it is complete.")
        return numbers

    def dense_ids(self, numbers: np.ndarray) -> np.ndarray:
        """The ids of numbers (int64), if `are_dense`."""
        return numbers + np.int64(self._first)

    def _make_index(self):
        from ..._native.numbering import DigestIndex

        self._require_memory()
        self._index = DigestIndex()
        for start in range(0, self.distinct, 1 << 18):
            self._in_index(np.arange(start, min(self.distinct, start + (1 << 18))) + np.int64(self._first))

    def _in_index(self, ids) -> np.ndarray:
        keys = np.ones((len(ids), 2), dtype=np.uint64)
        keys[:, 0] = mix(ids.view(np.uint64))  # the index distributes keys by their bits
        return self._index.add(keys).astype(np.int64)

    def _require_memory(self):
        if self._max_ids is not None and self.distinct > self._max_ids:
            raise UsageError(
                f"the ids are not contiguous, and a table of them ({ID_BYTES} bytes for each distinct block) does not "
                "fit into --memory. Renumber them with `kvtrace convert`, or raise --memory."
            )

    def _note(self, fresh):
        if not len(fresh):
            return
        follows = fresh[0] > self.largest or len(fresh) == self.distinct  # or these are the first ids
        self.in_order &= bool(follows and (fresh[1:] > fresh[:-1]).all())
        self.smallest, self.largest = min(self.smallest, int(fresh.min())), max(self.largest, int(fresh.max()))
        raw = fresh[(fresh < 0) | (fresh > IDENTIFIER)]
        self._raw += [raw] if len(raw) else []


KEPT = 1 << 25  # maximum block references of a file that are kept between passes: 128 MiB


class KeptNumbers:
    """The numbers of the ids of a file (int32), so that later passes need not read it; none if there are too many.

    Rows with blocks of outputs are not kept.
    """

    def __init__(self, max_references: int = KEPT) -> None:
        self._max, self._references = max_references, 0
        self._pieces: list[tuple[slice, np.ndarray]] | None = []  # rows, and their offsets
        self._numbers = GrowingArray(np.int32)

    def add(self, rows: slice, piece: Columns, numbers: np.ndarray | None, growth: float = 1.0) -> None:
        """Keep the numbers of the next rows; None for rows with outputs. `growth` is that of `OpenTrace`."""
        self._references += 0 if numbers is None else len(numbers)
        if numbers is None or self._references > self._max:
            self._pieces, self._numbers = None, GrowingArray(np.int32)
        if self._pieces is not None and numbers is not None:
            self._numbers.extend(numbers, growth)
            self._pieces.append((rows, piece.offsets.copy()))

    @property
    def are_complete(self) -> bool:
        """Whether the numbers of all rows are kept."""
        return bool(self._pieces)

    def pieces(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """The rows of the file, with the numbers of their blocks (int64) and offsets, piece by piece."""
        start, whole = 0, self._numbers.values()
        for rows, offsets in self._pieces or ():
            stop = start + offsets.item(-1)
            yield rows, whole[start:stop].astype(np.int64), offsets
            start = stop

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of all rows (int32), rows end to end, and their offsets."""
        blocks = [np.diff(offsets) for _, offsets in self._pieces or ()]
        return self._numbers.values(), offsets_of(np.concatenate([np.empty(0, np.int64), *blocks]))


def number_ids(piece: Columns, numbers: IdNumbers) -> np.ndarray | None:
    """Number the ids of some rows, each row's prompt before its output; returns the numbers if there are no outputs."""
    if piece.output_ids is None or piece.output_offsets is None:
        return numbers.see(piece.hash_ids)
    ids = np.empty(len(piece.hash_ids) + len(piece.output_ids), dtype=np.int64)
    ids[_places(piece.offsets, piece.output_offsets[:-1])] = piece.hash_ids
    ids[_places(piece.output_offsets, piece.offsets[1:])] = piece.output_ids
    numbers.see(ids)
    return None


def _places(offsets, shifts):
    """The place of each value after every row is moved by its shift."""
    return np.arange(offsets[-1]) + np.repeat(shifts, np.diff(offsets))


def blocks_of(piece: Columns, requests: np.ndarray, numbers: IdNumbers) -> RequestBlocks:
    """The blocks of the rows that are requests (row -> request, -1 = none)."""
    outputs = None if piece.output_ids is None else numbers.of(piece.output_ids)
    return of_requests(
        RequestBlocks(requests, numbers.of(piece.hash_ids), piece.offsets, outputs, piece.output_offsets)
    )


def of_requests(whole: RequestBlocks) -> RequestBlocks:
    """The blocks of the rows that are requests (-1 = none)."""
    requests = whole.requests
    return whole if (requests >= 0).all() else take_rows(whole, np.flatnonzero(requests >= 0))


def take_rows(blocks: RequestBlocks, rows: np.ndarray) -> RequestBlocks:
    """The blocks of some rows, in the given order."""
    from ..._native import numbering

    arrays = [array for numbers, offsets in blocks.segments() for array in numbering.take(numbers, offsets, rows)]
    return RequestBlocks(blocks.requests[rows], *arrays)


def join_in_order(pieces: list[RequestBlocks]) -> RequestBlocks:
    """All pieces as one, in time order."""
    with_outputs = any(blocks.output_numbers is not None for blocks in pieces)
    segments = [_joined([blocks.numbers for blocks in pieces], [blocks.offsets for blocks in pieces])]
    if with_outputs:
        outputs = [
            blocks.segments()[1] if blocks.output_numbers is not None else _no_outputs(blocks) for blocks in pieces
        ]
        segments.append(_joined([numbers for numbers, _ in outputs], [offsets for _, offsets in outputs]))
    requests = np.concatenate([blocks.requests for blocks in pieces])
    whole = RequestBlocks(requests, *[array for segment in segments for array in segment])
    return take_rows(whole, np.argsort(requests))


def _no_outputs(blocks: RequestBlocks) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(0, dtype=np.int64), np.zeros_like(blocks.offsets)


def _joined(numbers, offsets) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.concatenate([np.diff(piece) for piece in offsets])
    return np.concatenate(numbers), offsets_of(lengths)
