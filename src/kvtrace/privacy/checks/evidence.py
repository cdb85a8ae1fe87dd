"""The input of the checks: the file's content, its valid requests, its sidecar, and what the caller adds.

Columns over requests are in memory. Block ids are not: `Evidence.feed` passes them on in pieces, as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..._base.errors import InputError
from ...formats.open_pieces import MetadataText, OpenTrace, Piece
from ...formats.sidecar import ReadResult, Sidecar
from ...trace.columns import Columns
from ...trace.trace import Trace
from ..contributors import Contributors
from ..profiles import PROFILES
from ..release_options import Profile
from .block_feed import (
    AuditedRequests,
    IdNumbers,
    KeptNumbers,
    RequestBlocks,
    blocks_of,
    join_in_order,
    of_requests,
    take_rows,
)
from .block_sums import BlockSums, count_up_to

SIDECARS = ("the sidecar", "metadata kvtrace")
REFERENCES = 1 << 20  # block references that are sorted by time at once


@dataclass(eq=False)
class Evidence:
    """The input of all checks; `collect_evidence` makes it."""

    source: OpenTrace
    numbers: IdNumbers  # of the file's ids
    kept: KeptNumbers = field(default_factory=KeptNumbers)  # the numbers, if memory holds them
    texts: list[MetadataText] = field(default_factory=list)  # sidecars and the file's other metadata
    card: str | None = None
    sidecar: Sidecar | None = None  # from the first text that describes this file
    profile: Profile = PROFILES["standard"]  # graded against
    declared: Profile | None = None  # in the sidecar
    allowed_measured: tuple[str, ...] = ()  # the measured columns that the caller allows by name
    block_size: int | None = None
    tail: str | None = None
    requests: AuditedRequests | None = None  # rows whose blocks fit their lengths
    contributors: Contributors | None = None  # request -> contributor, if known
    users: np.ndarray | None = None  # request -> user in the file of users, -1 = unknown
    previous: Trace | None = None

    @property
    def read_result(self) -> ReadResult:
        """The reader's result: columns, lines, broken links."""
        return self.source.result

    @property
    def fields(self) -> dict[str, np.ndarray]:
        """Field of the file -> its scalar values."""
        return self.source.fields

    @property
    def columns(self) -> Columns:
        """The columns over the rows of the file."""
        return self.source.result.columns

    @property
    def meta(self) -> dict[str, Any]:
        """The optional values of the sidecar."""
        return {} if self.sidecar is None else self.sidecar.meta

    @property
    def texts_of_sidecar(self) -> dict[str, Any]:
        """All values of the first sidecar, as its text states them; empty if there is none."""
        values = next((text.values for text in self.texts if text.where in SIDECARS), None)
        return values if isinstance(values, dict) else {}

    @property
    def release(self) -> dict[str, Any]:
        """The section `release` of the sidecar."""
        section = self.meta.get("release")
        return section if isinstance(section, dict) else {}

    def line(self, row: int) -> int:
        """The line of a row of the file."""
        return self.read_result.line(row)

    @cached_property
    def sums(self) -> BlockSums:
        """The sums of one pass over the blocks."""
        assert self.requests is not None
        sums = BlockSums(self.requests, self.numbers.distinct)
        self.feed(sums.take)
        sums.parents.end()
        return sums

    def feed(self, take: Callable[[RequestBlocks], None]) -> None:
        """Pass the blocks of all requests to `take`, piece by piece, in the order of the file."""
        requests = self.requests
        assert requests is not None
        request_of_row = np.full(len(self.columns), -1, dtype=np.int32)  # row of the file -> request
        request_of_row[requests.rows] = np.arange(len(requests))

        if self.kept.are_complete:
            for rows, numbers, offsets in self.kept.pieces():
                take(of_requests(RequestBlocks(request_of_row[rows], numbers, offsets)))
            return
        for rows, columns in self.source.pieces():
            if rows.stop > len(request_of_row):
                raise InputError("the file grew during the audit. Audit it again when it is complete.")
            take(blocks_of(columns, request_of_row[rows], self.numbers))

    def kept_ids(self) -> Iterator[Piece] | None:
        """The rows of the file with their ids, piece by piece, if memory holds the numbers of ids that are dense."""
        if not self.kept.are_complete or not self.numbers.are_dense:
            return None
        blank = np.empty(0, dtype=np.int64)
        return (
            (rows, Columns(blank, blank, blank, self.numbers.dense_ids(numbers), offsets))
            for rows, numbers, offsets in self.kept.pieces()
        )

    def contributors_up_to(self, limit: int, contributor: np.ndarray) -> np.ndarray:
        """The different contributors of each block, at most `limit`; `contributor` has one for each request.

        The compiled count needs all numbers in memory; otherwise `count_up_to` takes them piece by piece.
        """
        requests = self.requests
        assert requests is not None
        if not self.kept.are_complete or not requests.in_order or len(requests) < len(self.columns):
            return count_up_to(limit, self.feed, contributor, self.sums.uses.anywhere)
        from ..._native import sharing

        numbers, offsets = self.kept.joined()
        count = sharing.count_contributors(numbers, offsets, contributor, self.numbers.distinct)
        return np.minimum(count, limit)

    def feed_in_time(self, take: Callable[[RequestBlocks], None]) -> None:
        """Like `feed`, in time order. If the file has another order, it is read again for each REFERENCES blocks."""
        assert self.requests is not None
        if self.requests.in_order:
            self.feed(take)
            return
        blocks = np.diff(self.columns.offsets)[self.requests.rows]
        batch = np.cumsum(blocks) // REFERENCES
        for start, stop in zip(*_bounds(batch), strict=True):
            pieces: list[RequestBlocks] = []

            def collect(piece: RequestBlocks, start=start, stop=stop, pieces=pieces):
                inside = np.flatnonzero((piece.requests >= start) & (piece.requests < stop))
                pieces.append(take_rows(piece, inside))

            self.feed(collect)
            take(join_in_order(pieces))


def _bounds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The start and the end of each run of equal values."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return starts, np.append(starts[1:], len(values))
