"""Columns over requests, and the ids of their blocks as one long array: a trace that is not verified yet.

Readers return Columns and writers take them. `block_size` and `tail` are passed separately.

Optional columns of one measured number for each request are in NUMBERS, each with its value for unknown. `service_ms`
is how long a request ran: sessions are replayed with it, and releases make it coarser. The columns of MEASURED are what
a service delivered: its cache hits and its times. A release drops them unless they are asked for by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .._base.errors import InputError, UsageError
from .dependencies import Dependencies

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


MAX_TIME = 2.0**53  # ms: a float64 holds each whole millisecond up to it, an int64 its microseconds


class Number(NamedTuple):
    """An optional column of one number for each request."""

    name: str
    dtype: type
    unknown: float  # the value of a request without a number
    meaning: str
    rule: str  # the name of its invariant in `check`
    fault: str  # the message for a number that breaks it

    @property
    def unit(self) -> str:
        """Tokens or ms."""
        return "tokens" if self.dtype is np.int64 else "ms"

    def is_known(self, values: np.ndarray) -> np.ndarray:
        """Request -> whether its number is known.

        >>> MEASURED["cached_tokens"].is_known(np.array([16, -1]))
        array([ True, False])
        >>> MEASURED["ttft_ms"].is_known(np.array([np.nan, 2.5]))
        array([False,  True])
        """
        return values != self.unknown if self.unknown == self.unknown else ~np.isnan(values)

    def unknowns(self, count: int) -> np.ndarray:
        """The column of some requests without a number.

        >>> MEASURED["cached_tokens"].unknowns(2)
        array([-1, -1])
        """
        return np.full(count, self.unknown, dtype=self.dtype)

    def is_wrong(self, values: np.ndarray, input_length: np.ndarray) -> np.ndarray:
        """Request -> whether its number breaks the invariant: tokens are tokens of the prompt, times are durations.

        >>> MEASURED["cached_tokens"].is_wrong(np.array([5, 6, -1, -2]), np.array([5, 5, 5, 5]))
        array([False,  True, False,  True])
        """
        limit = input_length if self.dtype is np.int64 else MAX_TIME
        return self.is_known(values) & ~((values >= 0) & (values <= limit))


def _time(name: str, meaning: str) -> Number:
    return Number(name, np.float64, np.nan, meaning, name, f"{name} is negative or longer than 2^53 ms.")


SERVICE = Number(
    "service_ms", np.float64, np.nan, "measured ms from the start of a request to its end",
    "service times", "the service time is negative or longer than 2^53 ms.",
)  # fmt: skip
MEASURED: dict[str, Number] = {
    row.name: row
    for row in (
        Number(
            "cached_tokens", np.int64, -1, "prompt tokens that the service took from its cache",
            "cached_tokens", "cached_tokens is not from 0 to input_length.",
        ),
        _time("ttft_ms", "measured ms from the arrival of a request to its first token"),
        _time("e2e_ms", "measured ms from the arrival of a request to its last token"),
        _time("queue_ms", "measured ms that a request waited before the service started it"),
    )
}  # fmt: skip
NUMBERS: dict[str, Number] = {SERVICE.name: SERVICE, **MEASURED}


def numbers_of(columns: object) -> dict[str, np.ndarray]:
    """The columns of NUMBERS that Columns have, by name.

    >>> from kvtrace.trace.building import toy
    >>> numbers_of(toy("0"))
    {}
    """
    values = {name: getattr(columns, name) for name in NUMBERS}
    return {name: numbers for name, numbers in values.items() if numbers is not None}


def measured_of(columns: object) -> dict[str, np.ndarray]:
    """The columns of MEASURED that Columns have, by name.

    >>> from kvtrace.trace.building import toy
    >>> measured_of(toy("0"))
    {}
    """
    return {name: values for name, values in numbers_of(columns).items() if name in MEASURED}


def joined_measured(parts: Sequence[Mapping[str, np.ndarray]], rows: Sequence[int]) -> dict[str, np.ndarray]:
    """The columns of MEASURED that some part has, end to end; the `rows` of a part without a column are unknown.

    >>> joined_measured([{"cached_tokens": np.array([5])}, {}], [1, 2])
    {'cached_tokens': array([ 5, -1, -1])}
    """
    return {
        name: np.concatenate(
            [part[name] if name in part else number.unknowns(count) for part, count in zip(parts, rows, strict=True)]
        )
        for name, number in MEASURED.items()
        if any(name in part for part in parts)
    }


Tail = Literal["kept", "unique", "dropped"]  # of TAILS
BlockRule = Literal["kept", "unique", "dropped", "stated"]  # of BLOCK_RULES
# what the last, partial block of a prompt is: shared, never shared, left out
TAILS: tuple[Tail, ...] = ("kept", "unique", "dropped")
# no such rule: each prompt has the full blocks that its source states, more or fewer than its tokens
STATED: Literal["stated"] = "stated"
BLOCK_RULES: tuple[BlockRule, ...] = (*TAILS, STATED)


@dataclass(eq=False, repr=False, init=False)
class Columns:
    """The columns of a trace, not verified.

    >>> Columns([0.0], [5], [1], [7, 8], [0, 2]).hash_ids
    array([7, 8])
    """

    timestamp: np.ndarray  # request -> ms, float64
    input_length: np.ndarray  # request -> tokens, int64
    output_length: np.ndarray  # request -> tokens, int64, -1 = unknown
    hash_ids: np.ndarray  # block reference -> id, prompts end to end, int64
    offsets: np.ndarray  # prompt r is hash_ids[offsets[r]:offsets[r + 1]], int64
    session: np.ndarray | None = None  # request -> conversation, -1 = none
    parent: np.ndarray | None = None  # request -> row of the previous turn, -1 = root
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # carried, not interpreted
    output_ids: np.ndarray | None = None  # the output's blocks, continuing the prompt's chain
    output_offsets: np.ndarray | None = None
    domain: np.ndarray | None = None  # request -> isolation domain (tenant, adapter, salt, model), -1 = none
    dependencies: Dependencies | None = None  # request -> what it waits for
    service_ms: np.ndarray | None = None  # request -> measured time from its start to its end, NaN = unknown
    cached_tokens: np.ndarray | None = None  # request -> prompt tokens from the service's cache, -1 = unknown
    ttft_ms: np.ndarray | None = None  # request -> measured time to the first token, NaN = unknown
    e2e_ms: np.ndarray | None = None  # request -> measured time to the last token, NaN = unknown
    queue_ms: np.ndarray | None = None  # request -> measured time before the service started it, NaN = unknown

    def __init__(
        self,
        timestamp: ArrayLike,
        input_length: ArrayLike,
        output_length: ArrayLike,
        hash_ids: ArrayLike,
        offsets: ArrayLike,
        session: ArrayLike | None = None,
        parent: ArrayLike | None = None,
        extra: Mapping[str, ArrayLike] | None = None,
        output_ids: ArrayLike | None = None,
        output_offsets: ArrayLike | None = None,
        domain: ArrayLike | None = None,
        dependencies: Dependencies | None = None,
        service_ms: ArrayLike | None = None,
        cached_tokens: ArrayLike | None = None,
        ttft_ms: ArrayLike | None = None,
        e2e_ms: ArrayLike | None = None,
        queue_ms: ArrayLike | None = None,
    ) -> None:
        self.timestamp = _column(timestamp, np.float64)
        self.input_length, self.output_length = _column(input_length, np.int64), _column(output_length, np.int64)
        self.hash_ids, self.offsets = _column(hash_ids, np.int64), _column(offsets, np.int64)
        self.session, self.parent = _optional(session), _optional(parent)
        self.extra = {name: _column(values, None) for name, values in (extra or {}).items()}
        self.output_ids, self.output_offsets = _optional(output_ids), _optional(output_offsets)
        self.domain, self.dependencies = _optional(domain), dependencies
        measured = (service_ms, cached_tokens, ttft_ms, e2e_ms, queue_ms)  # in the order of NUMBERS
        for number, values in zip(NUMBERS.values(), measured, strict=True):
            setattr(self, number.name, None if values is None else _column(values, number.dtype))

    def __len__(self) -> int:
        return len(self.timestamp)

    def pieces(self) -> Iterator[tuple[slice, Columns]]:
        """The rows piece by piece, each with its rows in the whole; a trace in memory is one piece.

        Ids and parents are those of the whole trace. A lazy trace (`formats.lazy`) has many pieces.

        >>> from kvtrace.trace.building import toy
        >>> [(rows, piece.hash_ids.tolist()) for rows, piece in toy("0 1", "0 2").pieces()]
        [(slice(0, 2, None), [0, 1, 0, 2])]
        """
        yield slice(0, len(self)), self

    def take(self, rows: np.ndarray) -> Columns:
        """The given rows, in the given order; parents are mapped to their new rows, -1 for missing ones.

        Dependencies on missing rows are cut.
        """
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
            domain=None if self.domain is None else self.domain[rows],
            dependencies=None if self.dependencies is None else self.dependencies.take(rows),
            **{name: values[rows] for name, values in numbers_of(self).items()},
        )  # fmt: skip


def replace_columns(columns: Columns, **changed) -> Columns:
    """Columns with the same arrays, some of them replaced."""
    return replace(Columns(**fields_of(columns)), **changed)


def fields_of(columns: Columns) -> dict[str, Any]:
    """The columns by name."""
    return {name: getattr(columns, name) for name in Columns.__dataclass_fields__}


def rows_of(columns: Columns, start: int, stop: int) -> Columns:
    """Some consecutive rows; ids, parents and the rows of dependencies stay unchanged.

    >>> from kvtrace.trace.building import toy
    >>> rows_of(toy("0 1", "0 2", "3"), 1, 3).hash_ids
    array([0, 2, 3])
    """
    rows = slice(start, stop)
    hash_ids, offsets = _cut(columns.hash_ids, columns.offsets, start, stop)
    output_ids = output_offsets = None
    if columns.output_ids is not None and columns.output_offsets is not None:
        output_ids, output_offsets = _cut(columns.output_ids, columns.output_offsets, start, stop)
    return Columns(
        columns.timestamp[rows], columns.input_length[rows], columns.output_length[rows], hash_ids, offsets,
        session=None if columns.session is None else columns.session[rows],
        parent=None if columns.parent is None else columns.parent[rows],
        extra={name: values[rows] for name, values in columns.extra.items()},
        output_ids=output_ids, output_offsets=output_offsets,
        domain=None if columns.domain is None else columns.domain[rows],
        dependencies=None if columns.dependencies is None else columns.dependencies.rows_of(start, stop),
        **{name: values[rows] for name, values in numbers_of(columns).items()},
    )  # fmt: skip


def _cut(values: np.ndarray, offsets: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    return values[offsets[start] : offsets[stop]], offsets[start : stop + 1] - offsets[start]


def _optional(values: ArrayLike | None) -> np.ndarray | None:
    return None if values is None else _column(values, np.int64)


def _column(values, dtype) -> np.ndarray:
    array = np.asarray(values)
    if dtype is np.int64 and array.dtype.kind == "u" and array.dtype.itemsize == 8:
        array = array.view(np.int64)  # 64-bit hashes keep their bits
    elif dtype is np.int64 and array.dtype.kind == "f" and array.size and not (array == np.floor(array)).all():
        raise InputError("a column of whole numbers contains a fraction.")
    return np.ascontiguousarray(array, dtype=dtype).view()


def _take_ragged(values, offsets, rows):
    from .._native import numbering

    return numbering.take(values, offsets, rows)


def _moved_parents(parent, rows):
    moved = np.full(len(parent) + 1, -1, dtype=np.int64)  # old row -> new row; the last is for -1
    moved[rows] = np.arange(len(rows))
    return moved[parent[rows]]


def require_trace(*values: object) -> None:
    """Raise UsageError if a value is the path of a trace: public functions take the trace.

    >>> require_trace("day.jsonl")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: this function takes a Trace, not its path. Read it first: kvtrace.read(path).
    """
    if any(isinstance(value, str | os.PathLike) for value in values):
        raise UsageError("this function takes a Trace, not its path. Read it first: kvtrace.read(path).")
