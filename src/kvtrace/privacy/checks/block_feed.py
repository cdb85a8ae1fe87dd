"""The blocks of an audited file as RequestBlocks: ids become numbers, rows become requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..._base.growing_array import GrowingArray
from ..._base.offsets import offsets_of
from ...trace.columns import Columns
from .blocks import RequestBlocks
from .id_numbers import IdNumbers

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
        start, whole = 0, self._numbers.done()
        for rows, offsets in self._pieces or ():
            stop = start + offsets.item(-1)
            yield rows, whole[start:stop].astype(np.int64), offsets
            start = stop

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of all rows (int32), rows end to end, and their offsets."""
        blocks = [np.diff(offsets) for _, offsets in self._pieces or ()]
        return self._numbers.done(), offsets_of(np.concatenate([np.empty(0, np.int64), *blocks]))


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
