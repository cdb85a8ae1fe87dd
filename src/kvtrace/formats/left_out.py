"""The columns of a trace that a file of a format does not have, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from ..trace.columns import Columns
from ..trace.turns import previous_turn
from . import agentic_mooncake, bailian
from .targets.losses import Losses
from .weka_losses import lost_in_sessions

EXTRA = " Add --extra to keep extra columns."  # of commands with this option
TIMES_ONLY = ("mooncake", "bailian")  # formats without dependencies and service times
KEEPING = " Use the format agentic-mooncake or parquet to keep them."
KEPT: dict[str, tuple[str, ...]] = {
    "mooncake": ("turn",),
    "bailian": bailian.KEYS,
    "agentic-mooncake": agentic_mooncake.KEPT,
}  # format -> extra columns that it always has


def left_out(
    columns: Columns, format: str, *, names: Collection[str] = (), extra: bool = False, remedy: str = ""
) -> list[str]:
    """Sentences on the sessions, parents, dependencies and extra columns that a file of a format does not have.

    Args:
        columns: The columns that are written.
        format: A trace format.
        names: The names of extra columns that are written but not in `columns`.
        extra: As in `write`.
        remedy: The end of the sentence on extra columns.

    Returns:
        One sentence for each kind of column that is lost.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1", "0 2", "0 3")
    >>> trace.session, trace.parent = np.array([0, 0, 0]), np.array([-1, 0, 0])
    >>> left_out(trace, "mooncake")
    ['1 parent was left out: this format has sessions only. Use the format bailian to keep parents.']
    """
    if format == "weka":
        return lost_in_sessions(columns, extra=extra, remedy=remedy)
    done = LeftOut(format, extra=extra)
    done.add(columns)
    done.names.update(dict.fromkeys(names))
    return done.sentences(remedy)


class LeftOut:
    """Counts what a file of a format does not have, for a trace that is written in chunks."""

    def __init__(self, format: str, *, extra: bool = False):
        self._format, self._extra = format, extra
        self._start = self._parents = self._split = self._dependencies = self._service_times = 0
        self._last = np.empty(0, dtype=np.int64)  # session -> its last row so far, -1 = none
        self.names: dict[str, None] = {}  # of extra columns

    def watch(self, chunks: Iterable[Columns]) -> Iterator[Columns]:
        """The same chunks, each of them added."""
        for columns in chunks:
            self.add(columns)
            yield columns

    def add(self, columns: Columns) -> None:
        """Count the next rows."""
        self.names.update(dict.fromkeys(name for name in columns.extra if not _is_default(name, columns.extra[name])))
        if self._format == "mooncake" and columns.parent is not None:
            before = self._before(columns)
            self._parents += int(((columns.parent >= 0) & (columns.parent != before)).sum())
        if self._format == "bailian" and columns.session is not None:
            self._split += split_sessions(columns)
        if self._format in TIMES_ONLY:
            self._dependencies += 0 if columns.dependencies is None else len(columns.dependencies.row)
            self._service_times += 0 if columns.service_ms is None else int((~np.isnan(columns.service_ms)).sum())
        self._start += len(columns)

    def _before(self, columns: Columns) -> np.ndarray:
        """The row of the previous request of each request's session: the parent that a reader assumes."""
        session = np.full(len(columns), -1) if columns.session is None else columns.session
        room = int(session.max(initial=-1)) + 1 - len(self._last)
        self._last = np.concatenate([self._last, np.full(max(0, room), -1)])
        inside, before = np.flatnonzero(session >= 0), previous_turn(session)
        before = np.where(before >= 0, before + self._start, -1)
        first = inside[before[inside] < 0]
        before[first] = self._last[session[first]]
        self._last[session[inside]] = inside + self._start  # the last row of a session stays
        return before

    def sentences(self, remedy: str = "") -> list[str]:
        """One sentence for each kind of column that is lost."""
        losses = Losses()
        rest = "left out: this format has sessions only. Use the format bailian to keep parents."
        losses.add(self._parents, f"parent was {rest}", f"parents were {rest}")
        rest = "split, because the chains of parents do not connect all of"
        losses.add(self._split, f"session was {rest} its requests.", f"sessions were {rest} their requests.")
        losses.left_out_waits(self._dependencies, self._service_times, KEEPING)
        kept = self.names if self._extra else KEPT.get(self._format, self.names)
        lost, rest = len(set(self.names) - set(kept)), f"left out: the format {self._format} does not have"
        losses.add(lost, f"extra column was {rest} it.{remedy}", f"extra columns were {rest} them.{remedy}")
        return losses.sentences


def _is_default(name: str, values: np.ndarray) -> bool:
    """Whether a column is what a reader assumes without it: each request is of the type `text`."""
    return name == "type" and bool((values == "text").all())


def split_sessions(columns: Columns) -> int:
    """The number of sessions whose requests are not one chain, or tree, of parents.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1", "0 2", "0 3")
    >>> trace.session, trace.parent = np.array([0, 0, 1]), np.array([-1, -1, -1])
    >>> split_sessions(trace)
    1
    """
    assert columns.session is not None
    inside = columns.session >= 0
    root = bailian.roots(bailian.parents(columns), columns.timestamp)
    pairs = np.unique(np.stack([columns.session[inside], root[inside]]), axis=1)
    return int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
