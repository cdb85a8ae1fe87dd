"""What requests wait for: in a session of an agent, a call starts some time after the calls that it waits for.

A request starts at the latest of its dependencies: when the request that it names is dispatched or completed, plus a
delay. A request without dependencies starts at its timestamp. Dependencies are a list for each request, end to end in
one array per field and cut by offsets, as block ids are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, wrong_word

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TRIGGERS = ("dispatch", "completion")  # of the request that is waited for
# the next call; the first call of a subagent; a call after subagents; a call that began later, for no known reason
RELATIONS = ("sequence", "spawn", "join", "replay_barrier")
DISPATCH, COMPLETION = range(2)
SEQUENCE, SPAWN, JOIN, BARRIER = range(4)


@dataclass(eq=False, repr=False)
class Dependencies:
    """The dependencies of each request: those of request r are `row[offsets[r]:offsets[r + 1]]`.

    >>> first, second = [], [(0, "completion", "sequence", 250.0)]
    >>> waits = Dependencies.of([first, second])
    >>> waits.row, waits.delay_ms, len(waits)
    (array([0]), array([250.]), 2)
    """

    offsets: np.ndarray  # request + 1 -> int64
    row: np.ndarray  # dependency -> the row of the request that is waited for, int64
    trigger: np.ndarray  # dependency -> index in TRIGGERS, int8
    relation: np.ndarray  # dependency -> index in RELATIONS, int8
    delay_ms: np.ndarray  # dependency -> ms after the trigger, float64

    def __post_init__(self) -> None:
        for name, dtype in DTYPES.items():
            setattr(self, name, np.ascontiguousarray(getattr(self, name), dtype=dtype).view())

    @classmethod
    def of(cls, requests: Iterable[Sequence[tuple[int, str, str, float]]]) -> Dependencies:
        """Dependencies of a list for each request: (row, trigger, relation, delay in ms).

        Raises:
            UsageError: A trigger is not in TRIGGERS, or a relation is not in RELATIONS.
        """
        lists = list(requests)
        flat = [item for items in lists for item in items]
        return cls(
            offsets_of([len(items) for items in lists]),
            np.array([item[0] for item in flat], dtype=np.int64),
            np.array([_index("trigger", item[1], TRIGGERS) for item in flat], dtype=np.int8),
            np.array([_index("relation", item[2], RELATIONS) for item in flat], dtype=np.int8),
            np.array([item[3] for item in flat], dtype=np.float64),
        )

    @classmethod
    def none(cls, requests: int) -> Dependencies:
        """Requests that wait for nothing.

        >>> len(Dependencies.none(3))
        3
        """
        nothing = np.empty(0)
        return cls(np.zeros(requests + 1), nothing, nothing, nothing, nothing)

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Dependencies({len(self):,} requests, {len(self.row):,} dependencies)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dependencies):
            return NotImplemented
        return all(np.array_equal(mine, theirs) for mine, theirs in zip(self.arrays(), other.arrays(), strict=True))

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def arrays(self) -> list[np.ndarray]:
        """The arrays, in the order of the fields."""
        return [getattr(self, name) for name in DTYPES]

    @property
    def request(self) -> np.ndarray:
        """dependency -> the row of the request that waits, int64.

        >>> Dependencies.of([[], [(0, "completion", "sequence", 0.0)]]).request
        array([1])
        """
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def take(self, rows: np.ndarray) -> Dependencies:
        """The dependencies of some requests on each other, with their new row numbers; all others are cut.

        >>> line = Dependencies.of([[], [(0, "completion", "sequence", 0.0)], [(1, "completion", "sequence", 5.0)]])
        >>> line.take(np.array([1, 2])).row, line.take(np.array([1, 2])).offsets
        (array([0]), array([0, 0, 1]))
        """
        renumbered = np.full(len(self), -1, dtype=np.int64)
        renumbered[rows] = np.arange(len(rows))
        new_request, row = renumbered[self.request], renumbered[self.row]
        kept = np.flatnonzero((new_request >= 0) & (row >= 0))
        kept = kept[np.argsort(new_request[kept], kind="stable")]
        counts = np.bincount(new_request[kept], minlength=len(rows))
        return replace(
            self, offsets=offsets_of(counts), row=row[kept], trigger=self.trigger[kept],
            relation=self.relation[kept], delay_ms=self.delay_ms[kept],
        )  # fmt: skip

    def rows_of(self, start: int, stop: int) -> Dependencies:
        """The dependencies of consecutive requests; row numbers stay those of the whole."""
        first, last = self.offsets[start], self.offsets[stop]
        part = {name: getattr(self, name)[first:last] for name in DTYPES if name != "offsets"}
        return Dependencies(self.offsets[start : stop + 1] - first, **part)

    def shifted(self, rows: int) -> Dependencies:
        """The same dependencies on rows that are `rows` later."""
        return replace(self, row=self.row + rows)


DTYPES = {"offsets": np.int64, "row": np.int64, "trigger": np.int8, "relation": np.int8, "delay_ms": np.float64}
assert tuple(DTYPES) == tuple(field.name for field in fields(Dependencies))


def _index(name: str, value: str, choices: tuple[str, ...]) -> int:
    if value not in choices:
        raise wrong_word(value, f"a {name} of a dependency", choices)
    return choices.index(value)


def join_dependencies(parts: Sequence[tuple[int, Dependencies | None]]) -> Dependencies | None:
    """The dependencies of chunks of requests, each given with its number of requests; None if no chunk has any.

    >>> join_dependencies([(1, None), (1, Dependencies.none(1))])
    Dependencies(2 requests, 0 dependencies)
    """
    if all(part is None for _, part in parts):
        return None
    chunks = [Dependencies.none(requests) if part is None else part for requests, part in parts]
    joined = {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in DTYPES if name != "offsets"}
    return Dependencies(offsets_of(np.concatenate([np.diff(chunk.offsets) for chunk in chunks])), **joined)


def dependencies_between(
    request: ArrayLike, row: ArrayLike, trigger: ArrayLike, relation: ArrayLike, delay_ms: ArrayLike, requests: int
) -> Dependencies:
    """Dependencies given one by one, in any order, as a list for each of `requests` requests."""
    request = np.asarray(request, dtype=np.int64)
    if len(request) and not 0 <= request.min() <= request.max() < requests:
        raise InputError("a dependency belongs to a request that does not exist.")
    order = np.argsort(request, kind="stable")
    arrays = [np.asarray(values)[order] for values in (row, trigger, relation, delay_ms)]
    return Dependencies(offsets_of(np.bincount(request, minlength=requests)), *arrays)
