"""The blocks of an audited file as RequestBlocks: ids become numbers, rows become requests."""

from __future__ import annotations

import numpy as np

from ..._base.offsets import offsets_of
from ...trace.columns import Columns
from .blocks import RequestBlocks
from .id_numbers import IdNumbers


def number_ids(piece: Columns, numbers: IdNumbers) -> None:
    """Number the ids of some rows, each row's prompt before its output."""
    if piece.output_ids is None or piece.output_offsets is None:
        numbers.see(piece.hash_ids)
        return
    ids = np.empty(len(piece.hash_ids) + len(piece.output_ids), dtype=np.int64)
    ids[_places(piece.offsets, piece.output_offsets[:-1])] = piece.hash_ids
    ids[_places(piece.output_offsets, piece.offsets[1:])] = piece.output_ids
    numbers.see(ids)


def _places(offsets, shifts):
    """The place of each value after every row is moved by its shift."""
    return np.arange(offsets[-1]) + np.repeat(shifts, np.diff(offsets))


def blocks_of(piece: Columns, requests: np.ndarray, numbers: IdNumbers) -> RequestBlocks:
    """The blocks of the rows that are requests (row -> request, -1 = none)."""
    outputs = None if piece.output_ids is None else numbers.of(piece.output_ids)
    whole = RequestBlocks(requests, numbers.of(piece.hash_ids), piece.offsets, outputs, piece.output_offsets)
    return whole if (requests >= 0).all() else take_rows(whole, np.flatnonzero(requests >= 0))


def take_rows(blocks: RequestBlocks, rows: np.ndarray) -> RequestBlocks:
    """The blocks of some rows, in the given order."""
    from ..._native import ragged

    arrays = [array for numbers, offsets in blocks.segments() for array in ragged.take(numbers, offsets, rows)]
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
