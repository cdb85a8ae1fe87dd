"""The columns of a trace that a file of a format, or a Weka session, does not have, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ..trace.columns import Columns
from ..trace.dependencies import Dependencies
from ..trace.session_trees import previous_turn, recorded_dependencies
from ..trace.trace import Trace
from . import agentic_mooncake, bailian
from .bailian import changed_times
from .targets.losses import Losses

READ_BACK = ("weka", "prefixes")  # sections of the metadata that sessions hold; without ids, prefixes are unknown


def lost_in_sessions(columns: Columns, *, extra: bool = False, remedy: str = "") -> list[str]:
    """Sentences on what is lost when a trace is written as sessions; `remedy` ends the one on extra columns.

    >>> from kvtrace.trace.building import toy
    >>> lost_in_sessions(toy("0 1", "0 2"))
    ['2 requests without a session became sessions of their own.']
    """
    from .weka_objects import SessionObjects

    losses = Losses()
    block_size, meta = (columns.block_size, columns.meta) if isinstance(columns, Trace) else (1, {})
    objects = SessionObjects(columns, block_size, meta, extra=extra)
    alone = len(columns) if columns.session is None else int((columns.session < 0).sum())
    losses.add(alone, "request without a session became a session of its own.",
               "requests without a session became sessions of their own.")  # fmt: skip
    losses.drop_outputs(Columns(**_fields(columns)))
    domains = 0 if columns.domain is None else len(np.unique(columns.domain))
    losses.add(domains, "domain was left out.", "domains were left out: sessions share all equal blocks.")
    losses.left_out_measured(columns)
    if isinstance(columns, Trace) and columns.tail == "unique":
        losses.sentences.append("Unique tails are read back as kept ones.")
    lost = len(objects.lost_columns())
    rest = "left out: sessions have no such"
    losses.add(lost, f"extra column was {rest} field.{remedy}", f"extra columns were {rest} fields.{remedy}")
    moved = changed_times(columns.timestamp)
    losses.add(
        moved, "time has more decimals than seconds can keep.", "times have more decimals than seconds can keep."
    )
    waits = _other_waits(columns, objects)
    losses.add(waits, "request waits for others than a reader infers from the times.",
               "requests wait for others than a reader infers from the times.")  # fmt: skip
    sections = [name for name, values in meta.items() if values and name not in READ_BACK]
    losses.add(len(sections), "section of the sidecar was left out.", "sections of the sidecar were left out.")
    return losses.sentences


def _fields(columns: Columns) -> dict:
    nothing = np.empty(0)
    return {
        "timestamp": nothing, "input_length": nothing, "output_length": nothing, "hash_ids": nothing,
        "offsets": np.zeros(1), "output_ids": columns.output_ids, "output_offsets": columns.output_offsets,
    }  # fmt: skip


def _other_waits(columns: Columns, objects: Any) -> int:
    """The number of requests whose dependencies differ from those that a reader infers."""
    if columns.dependencies is None:
        return 0
    waits = columns.dependencies
    inferred = recorded_dependencies(columns, objects.agent, session=objects.session)
    mine, theirs = _lists(waits), _lists(inferred)
    return sum(dependencies != expected for dependencies, expected in zip(mine, theirs, strict=True))


def _lists(waits: Dependencies) -> list[list[tuple]]:
    """The dependencies of each request, sorted; delays to the nanosecond."""
    values = zip(waits.row.tolist(), waits.trigger.tolist(), waits.relation.tolist(),
                 np.round(waits.delay_ms, 6).tolist(), strict=True)  # fmt: skip
    flat = list(values)
    return [sorted(flat[start:stop]) for start, stop in pairwise(waits.offsets.tolist())]


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
    missing = MissingColumns(format, extra=extra)
    missing.add(columns)
    missing.names.update(dict.fromkeys(names))
    losses = Losses()
    if format == "agentic-mooncake" and isinstance(columns, Trace):
        losses.complete_prompts(columns)
    return missing.sentences(remedy) + losses.sentences


class MissingColumns:
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
