"""Collect encoded rows: number their digests as they arrive, then sort all rows by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.arrays import numbers_of_digests, offsets_of
from .._base.units import NS_PER_MS
from .._native.numbering import DigestIndex
from ..privacy.contributors import Users
from ..privacy.linking import Identities
from ..privacy.session_times import measured_ms
from ..privacy.trace_draft import RowBlocks, TraceDraft
from ..trace.columns import BlockRule, Columns, joined_measured
from ..trace.normalise import by_first_appearance, is_reversed
from ..trace.session_trees import previous_turn, turn_numbers
from .encoding import Batch, Recipe
from .logs.times import ArrivalModel, require_starts, times_after_delays


class Collector:
    """Collects the encoded rows of a log, in its order, and returns them in their final order.

    Call `add` with each batch (or `add_rows`), then `finish` once.
    """

    block_size: int
    tail: BlockRule
    outputs: bool

    def __init__(self, *, block_size: int, tail: BlockRule, outputs: bool, arrival_model: ArrivalModel | None = None):
        self.block_size, self.tail, self.outputs = block_size, tail, outputs
        self._arrival_model = arrival_model
        self._index, self._sessions = DigestIndex(), DigestIndex()
        self._accounts, self._users, self._domains = DigestIndex(), DigestIndex(), DigestIndex()
        self._numbers = bytearray()  # of the blocks of all rows, in the order of the log, int32
        self._columns: dict[str, list[np.ndarray]] = {}  # name -> one array a batch
        self._measured: list[Mapping[str, np.ndarray]] = []  # columns of MEASURED, of each batch
        self._rows: list[int] = []  # of each batch
        self._types: list[str | None] = []
        self._has_delays = False

    @classmethod
    def of(cls, recipe: Recipe, arrival_model: ArrivalModel | None = None) -> Collector:
        """The collector of rows that were encoded with this recipe."""
        return cls(
            block_size=recipe.block_size, tail=recipe.tail, outputs=recipe.options.outputs, arrival_model=arrival_model
        )  # fmt: skip

    def add(self, batch: Batch) -> None:
        """Add the rows of a batch."""
        self.add_rows(
            time=batch.time_ns, input_length=batch.input_length, output_length=batch.output_length,
            blocks=batch.prompts + batch.outputs, prompts=batch.prompts, digests=batch.all_digests(),
            session=batch.session, account=batch.account, user=batch.user, domain=batch.domain, types=batch.type,
            service=batch.service_ns, delay=batch.delay_ns, measured=batch.measured,
        )  # fmt: skip

    def add_rows(
        self,
        *,
        digests: np.ndarray,
        session: np.ndarray | None,
        account: np.ndarray | None,
        user: np.ndarray | None,
        domain: np.ndarray | None,
        types: list[str | None],
        service: np.ndarray | None = None,
        delay: np.ndarray | None = None,
        measured: Mapping[str, np.ndarray] | None = None,
        **columns: np.ndarray,
    ) -> None:
        """Add rows: the digests of their blocks, sessions, accounts, users and domains, their types, and plain columns.

        `service` has the nanoseconds from the start to the end of each request, -1 = unknown; None = all unknown.
        `delay` has the nanoseconds from the end of the session's request before to a request without a time, -1 = none.
        `measured` has columns of MEASURED; missing ones are unknown. The plain columns are time, input_length,
        output_length, blocks (of prompt and output) and prompts (blocks).
        """
        self._numbers += self._index.add(digests).data
        count = len(types)
        keys = {"session": (self._sessions.add, session), "account": (self._accounts.add, account),
                "user": (self._users.add, user), "domain": (self._domains.add, domain)}  # fmt: skip
        columns["service"] = np.full(count, -1) if service is None else service
        columns["delay"] = np.full(count, -1) if delay is None else delay
        self._has_delays = self._has_delays or delay is not None
        self._measured.append(measured or {})
        self._rows.append(count)
        self._append(**{name: numbers_of_digests(*key, count) for name, key in keys.items()}, **columns)
        self._types.extend(types)

    def _append(self, **columns):
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    @property
    def is_reversed(self) -> bool:
        """Whether the log's times fell from row to row, in all rows or in those of each session."""
        time, session = (np.concatenate(self._columns.get(name, [np.empty(0)])) for name in ("time", "session"))
        return self._arrival_model is None and not self._has_delays and is_reversed(time, session)

    def identities(self) -> Identities:
        """The digests behind the numbers of the rows that `finish` returns, by time; to be called before it."""
        assert self._arrival_model is None
        time = np.concatenate(self._columns["time"])
        order = np.argsort(time, kind="stable")
        indexes = {"session": self._sessions, "account": self._accounts, "user": self._users, "domain": self._domains}
        keys = {name: _digests_of(index, np.concatenate(self._columns[name])[order]) for name, index in indexes.items()}
        return Identities(blocks=self._index.digests(), start_ns=int(time.min()), **keys)

    def finish(self, meta: Mapping[str, Any], *, keep_order: bool) -> tuple[TraceDraft, Users | None]:
        """All rows, sorted by time (stably) or in the log's order; and the user of each row."""
        column = {name: np.concatenate(self._columns.pop(name)) for name in list(self._columns)}
        column["time"] = self._times(column)
        by_time = np.argsort(column["time"], kind="stable")
        order = np.arange(len(by_time)) if keep_order else by_time
        rows = Columns(
            timestamp=((column["time"] - column["time"].min()) // NS_PER_MS)[order],
            input_length=column["input_length"][order], output_length=column["output_length"][order],
            hash_ids=[], offsets=np.zeros(len(order) + 1), extra=self._extra(order),
        )  # fmt: skip
        if self._sessions.distinct:
            _link_sessions(rows, column["session"], by_time, order)
        rows.service_ms = measured_ms(column["time"], column["service"], column["time"].min())[order]
        for name, values in joined_measured(self._measured, self._rows).items():
            setattr(rows, name, values[order])
        rows.domain = numbered_domains(column["domain"][order])
        users = self._users_of(column["account"][order], column["user"][order])
        blocks = self._blocks(offsets_of(column["blocks"]), column["prompts"] if self.outputs else None)
        if not (order[1:] > order[:-1]).all():
            blocks = blocks.take(order)
        return TraceDraft(rows, blocks, block_size=self.block_size, tail=self.tail, meta=meta), users

    def _times(self, column: Mapping[str, np.ndarray]) -> np.ndarray:
        """The times of the rows, which follow from delays or an arrival model where the log has none."""
        times, delay = column["time"], column["delay"] if self._has_delays else None
        if delay is not None:
            times = times_after_delays(times, column["session"], delay, column["service"])
        if self._arrival_model is not None:
            return self._arrival_model.times_ns(times, column["session"], delay)
        require_starts(times)
        return times

    def _users_of(self, account: np.ndarray, user: np.ndarray) -> Users | None:
        """The accounts with their users, if the log has any; else its users."""
        if self._accounts.distinct:
            return Users(account, "accounts", member=user)
        return Users(user, "client_users") if self._users.distinct else None

    def _blocks(self, offsets, prompts) -> RowBlocks:
        """The blocks of all rows; the collector keeps no second reference to them."""
        numbers, self._numbers = np.frombuffer(self._numbers, np.int32), bytearray()
        return RowBlocks(numbers, offsets, distinct=self._index.distinct, prompts=prompts)

    def _extra(self, order):
        if all(kind is None for kind in self._types):
            return {}
        return {"type": np.array([kind or "text" for kind in self._types], dtype=object)[order]}


def _digests_of(index: DigestIndex, numbers: np.ndarray) -> np.ndarray:
    """Row -> the digest of its number; zeros for -1."""
    digests = np.zeros((len(numbers), 2), dtype=np.uint64)
    digests[numbers >= 0] = index.digests()[numbers[numbers >= 0]]
    return digests


def numbered_domains(domain: np.ndarray) -> np.ndarray | None:
    """The domains of rows in their final order, by first appearance; None if all rows have the same, or none.

    >>> numbered_domains(np.array([5, -1, 3])), numbered_domains(np.array([5, 5]))
    (array([ 0, -1,  1]), None)
    """
    return None if (domain == domain[:1]).all() else by_first_appearance(domain)


def _link_sessions(columns: Columns, session, by_time, order) -> None:
    """Number the sessions by time. Set each request's turn (from 1) and its parent, the turn before it."""
    output_row = np.empty_like(order)  # input row -> output row
    output_row[order] = np.arange(len(order))
    rows, in_time = output_row[by_time], by_first_appearance(session[by_time])
    before = previous_turn(in_time)
    columns.session, columns.parent = np.empty_like(rows), np.empty_like(rows)
    turn = np.empty_like(rows)
    columns.session[rows], turn[rows] = in_time, turn_numbers(in_time)
    columns.parent[rows] = np.where(before < 0, -1, rows[before])
    columns.extra["turn"] = turn
