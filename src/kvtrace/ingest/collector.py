"""Collect batches: number their digests as they arrive, then sort all rows by time and number the ids in that order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.row_counts import Counts
from .._native.ids import DigestIndex, number_rows
from ..privacy.releases import Released
from ..trace.columns import Columns
from ..trace.trace import Trace
from .encoding import Batch, Recipe
from .logs.arrival_model import ArrivalModel
from .row_counts import RowCounter

NS_PER_MS = 1_000_000


@dataclass
class AnonymizedRows:
    """The anonymised rows in output order, with their settings and counts."""

    columns: Columns
    block_size: int
    tail: str
    meta: dict[str, Any]
    counts: Counts
    users: np.ndarray | None = None  # request -> user, -1 = unknown; never written
    released: Released | None = None  # the profile's steps and their costs; None if rows keep the log's order

    def trace(self) -> Trace:
        """The rows as a verified Trace, in order of time."""
        if (np.diff(self.columns.timestamp) >= 0).all():  # already in order: no second copy of the ids
            fields = {name: getattr(self.columns, name) for name in Columns.__dataclass_fields__}
            return Trace(**fields, block_size=self.block_size, tail=self.tail, meta=self.meta)
        return Trace.from_columns(self.columns, block_size=self.block_size, tail=self.tail, meta=self.meta)


class Collector:
    """Collects the batches of a log, in input order, and returns the rows in their final order.

    Call `expect` with each piece that is sent to a worker, `add` with each batch that comes back, and `finish` once.
    """

    def __init__(self, recipe: Recipe, max_errors: int, on_reject, arrival_model: ArrivalModel | None = None):
        self.block_size, self.tail, self.outputs = recipe.block_size, recipe.tail, recipe.outputs
        self._arrival_model = arrival_model
        self.row_counter = RowCounter(max_errors, on_reject)
        self._pending: list = []  # pieces whose batches have not come back yet
        self._index, self._sessions, self._users = DigestIndex(), DigestIndex(), DigestIndex()
        self._block_numbers, self._output_block_numbers = bytearray(), bytearray()  # provisional numbers, int32
        self._columns: dict[str, list[np.ndarray]] = {}  # name -> one array a batch
        self._types: list[str | None] = []

    def expect(self, piece) -> None:
        """Note that a piece was sent to a worker."""
        self._pending.append(piece)

    def add(self, batch: Batch) -> int:
        """Add the batch of the oldest pending piece. Returns the bytes of input that are done."""
        piece = self._pending.pop(0)
        self.row_counter.add(batch, piece)
        blocks = self._number(self._block_numbers, batch.digests, batch.offsets)
        lengths = {"input_length": batch.input_length, "output_length": batch.output_length}
        self._append(time=batch.time_ns, blocks=blocks, **lengths)
        if batch.output_known is not None:
            self._append(
                output_blocks=self._number(self._output_block_numbers, batch.output_digests, batch.output_offsets)
            )
        self._append(session=_numbers(self._sessions, batch.session, len(batch)))
        self._append(user=_numbers(self._users, batch.user, len(batch)))
        self._types.extend(batch.type)
        return piece.done

    def _number(self, numbers: bytearray, digests, offsets) -> np.ndarray:
        """Append the number of each block to `numbers`. Returns the number of blocks of each row."""
        numbers += self._index.add(digests).data
        return np.diff(offsets)

    def _append(self, **columns):
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def finish(self, meta: dict, *, keep_order: bool) -> AnonymizedRows:
        """All rows, sorted by time (stably) or in the log's order. Ids are numbered in that order."""
        column = {name: np.concatenate(self._columns.pop(name)) for name in list(self._columns)}
        if self._arrival_model is not None:
            column["time"] = self._arrival_model.times_ns(column["time"], column["session"])
        by_time = np.argsort(column["time"], kind="stable")
        order = np.arange(len(by_time)) if keep_order else by_time
        hash_ids, output_ids = number_rows(
            np.frombuffer(self._block_numbers, np.int32), _offsets(column["blocks"]), order,
            np.frombuffer(self._output_block_numbers, np.int32) if self.outputs else None,
            _offsets(column["output_blocks"]) if self.outputs else None,
        )  # fmt: skip
        columns = Columns(
            timestamp=((column["time"] - column["time"].min()) // NS_PER_MS)[order],
            input_length=column["input_length"][order], output_length=column["output_length"][order],
            hash_ids=hash_ids, offsets=_offsets(column["blocks"][order]), extra=self._extra(order),
            output_ids=output_ids, output_offsets=_offsets(column["output_blocks"][order]) if self.outputs else None,
        )  # fmt: skip
        if self._sessions.distinct:
            _link_sessions(columns, column["session"], by_time, order)
        users = column["user"][order] if self._users.distinct else None
        counts = self.row_counter.counts
        return AnonymizedRows(columns, self.block_size, self.tail, meta | counts.unknown, counts, users)

    def _extra(self, order):
        if all(kind is None for kind in self._types):
            return {}
        return {"type": np.array([kind or "text" for kind in self._types], dtype=object)[order]}


def _numbers(index: DigestIndex, digests, rows) -> np.ndarray:
    """Row -> the number of its digest, -1 = none."""
    numbers = np.full(rows, -1, dtype=np.int64)
    if digests is not None:
        known = digests.any(axis=1)
        numbers[known] = index.add(digests[known])
    return numbers


def _offsets(lengths) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _link_sessions(columns: Columns, session, by_time, order) -> None:
    """Number the sessions by time. Set each request's turn (from 1) and its parent, the turn before it."""
    output_row = np.empty_like(order)  # input row -> output row
    output_row[order] = np.arange(len(order))
    number_of_session: dict[int, int] = {}
    last_row: dict[int, int] = {}  # session -> output row of its latest turn
    last_turn: dict[int, int] = {}
    columns.session, columns.parent = np.full(len(order), -1), np.full(len(order), -1)
    turns = np.ones(len(order), dtype=np.int64)
    for input_row in by_time.tolist():
        key, row = int(session[input_row]), output_row[input_row]
        if key < 0:
            continue
        columns.session[row] = number_of_session.setdefault(key, len(number_of_session))
        columns.parent[row] = last_row.get(key, -1)
        turns[row] = last_turn[key] = last_turn.get(key, 0) + 1
        last_row[key] = row
    columns.extra["turn"] = turns
