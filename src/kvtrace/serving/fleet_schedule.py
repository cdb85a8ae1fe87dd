"""A schedule of a changing fleet: instances that start cold and drain, from a CSV or JSON lines file.

A started instance takes requests after its start-up time, with an empty cache. A draining one takes no new requests,
finishes those that it has, and then its cache is gone. docs/serving/serving.md has examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import InputError, UsageError
from .._base.files import name_of
from .._base.timed_rows import MAX_TIME_S, number_of, seconds_of, timed_rows
from ..cache.tiers import Tier

COLUMNS = ("time", "start", "drain", "replace", "startup")
WHAT = "a fleet's schedule"
MAX_INSTANCES = 2048  # of a run; each has the cache of an engine


@dataclass(frozen=True)
class FleetChange:
    """One change: instances that start, drain or are replaced; numbers count from 0, and started ones follow in order.

    A replaced instance drains when the new one takes requests.

    >>> FleetChange(600.0, replace=(0,), startup_s=90.0).place
    ''
    """

    time_s: float  # from the first request of the trace
    start: int = 0  # instances that start
    drain: tuple[int, ...] = ()  # instances that take no more requests
    replace: tuple[int, ...] = ()  # instances for each of which a new one starts
    startup_s: float = 0.0  # until a started one takes requests: its weights are loaded
    place: str = ""  # where the change is written, for errors


@dataclass(frozen=True, eq=False)
class FleetSpans:
    """When each instance of a run starts, takes requests and drains, and the phases of the run."""

    started_s: np.ndarray  # instance -> when its start-up begins
    takes_s: np.ndarray  # instance -> when it takes requests
    drains_s: np.ndarray  # instance -> when it takes no more; inf: never
    phases_s: tuple[float, ...]  # where each phase begins: 0, and each time at which other instances take requests
    first: int  # instances at time 0
    changes: bool  # false: the fixed fleet beside a schedule

    def __len__(self) -> int:
        return len(self.takes_s)

    def taking(self, at_s: float) -> np.ndarray:
        """The instances that take requests at a time."""
        return np.flatnonzero((self.takes_s <= at_s) & (at_s < self.drains_s))

    def taking_at(self, moments_s: np.ndarray) -> np.ndarray:
        """The number of instances that take requests at each of some times."""
        lives = self.takes_s < self.drains_s
        takes, drains = np.sort(self.takes_s[lives]), np.sort(self.drains_s[lives])
        return np.searchsorted(takes, moments_s, "right") - np.searchsorted(drains, moments_s, "right")

    @property
    def events(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The changes in order of time: seconds, the instance, and 1 if it takes requests from then on, else 0."""
        numbers = np.arange(len(self))
        lives = numbers[(self.takes_s < self.drains_s) | (numbers < self.first)]
        begins, ends = lives[lives >= self.first], lives[np.isfinite(self.drains_s[lives])]
        at = np.concatenate([self.takes_s[begins], self.drains_s[ends]])
        which = np.concatenate([begins, ends]).astype(np.int32)
        takes = np.repeat([1, 0], [len(begins), len(ends)]).astype(np.int8)
        order = np.argsort(at, kind="stable")
        return at[order], which[order], takes[order]


@dataclass(frozen=True)
class FleetSchedule:
    """The changes of a fleet in the order of their times.

    Raises:
        UsageError: A time is not valid, or not after the one before it.

    >>> night = FleetSchedule((FleetChange(3600.0, drain=(2, 3)), FleetChange(32400.0, start=2, startup_s=120.0)))
    >>> spans = night.spans(4)
    >>> [len(spans.taking(at)) for at in (0.0, 3600.0, 32400.0, 32520.0)]
    [4, 2, 2, 4]
    """

    changes: tuple[FleetChange, ...]

    def __post_init__(self) -> None:
        before = 0.0
        for change in self.changes:
            where = f"{change.place}: " if change.place else ""
            if not before <= change.time_s <= MAX_TIME_S:
                raise UsageError(f"{where}the time is before the one above it. Sort the changes by time.")
            if not 0 <= change.startup_s <= MAX_TIME_S or change.start < 0:
                raise UsageError(f"{where}start and startup must be at least 0.")
            before = change.time_s

    def spans(self, instances: int) -> FleetSpans:
        """When each instance takes requests, of a fleet that begins with so many.

        Raises:
            UsageError: A change names an instance that does not run, or leaves none that takes requests.
        """
        started, takes, drains = [0.0] * instances, [0.0] * instances, [inf] * instances
        for change in self.changes:
            where = f"{change.place}: " if change.place else ""
            ready = change.time_s + change.startup_s
            for number in (*change.drain, *change.replace):
                if not 0 <= number < len(drains):
                    raise UsageError(
                        f"{where}there is no instance {number}. The fleet has had instances 0 to {len(drains) - 1}."
                    )
                if drains[number] < inf:
                    raise UsageError(f"{where}instance {number} drains already. Remove the second change.")
                drains[number] = ready if number in change.replace else change.time_s
            new = change.start + len(change.replace)
            started += [change.time_s] * new
            takes += [ready] * new
            drains += [inf] * new
            if len(takes) > MAX_INSTANCES:
                raise UsageError(f"{where}a fleet can have at most {MAX_INSTANCES:,} instances in all.")
        spans = FleetSpans(np.array(started), np.array(takes), np.array(drains), (0.0,), instances, True)
        times = tuple(dict.fromkeys([0.0, *(float(at) for at in spans.events[0])]))
        for at in times:
            if not len(spans.taking(at)):
                raise UsageError(
                    f"At {at:,g} s no instance of the fleet takes requests. Start one before the last drains."
                )
        return FleetSpans(spans.started_s, spans.takes_s, spans.drains_s, times, instances, True)

    def fixed(self, instances: int) -> FleetSpans:
        """The fleet that does not change, with the phases of this schedule."""
        zeros = np.zeros(instances)
        return FleetSpans(zeros, zeros, np.full(instances, inf), self.spans(instances).phases_s, instances, False)


def read_fleet(path: str | Path) -> FleetSchedule:
    """Read a schedule of a changing fleet.

    Args:
        path: CSV with the column `time` and some of `start` (a number of instances), `drain` and `replace` (numbers of
            instances, with spaces between them) and `startup`; or JSON lines with these keys. Times count from the
            first request of the trace: seconds, durations (`90m`) or HH:MM.

    Raises:
        InputError: The file is not such a schedule; the message names the line.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "rollout.csv").write_text("time,replace,startup\\n10m,0,90s\\n20m,1,90s\\n")
    ...     read_fleet(os.path.join(folder, "rollout.csv")).spans(2).drains_s.tolist()
    [690.0, 1290.0, inf, inf]
    """
    name = name_of(path)
    changes = [_change(row, f"{name}:{line}") for line, row in timed_rows(path, name, WHAT, ",".join(COLUMNS))]
    if not changes:
        raise InputError(f"{name}: the file has no changes. Example: time,replace,startup, then 10m,0,90s.")
    try:
        return FleetSchedule(tuple(changes))
    except UsageError as error:
        raise InputError(str(error)) from None


def require_own_tiers(tiers: Iterable[Tier]) -> None:
    """Raise UsageError for tiers whose hosts would have to be known: those of a host, and those that peers read.

    >>> require_own_tiers([Tier("dram", 8, scope="host")])
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: --fleet does not support tier dram: it does not know the hosts of its instances...
    """
    for tier in tiers:
        if tier.scope == "host" or tier.peers:
            raise UsageError(
                f"--fleet does not support tier {tier.name}: it does not know the hosts of its instances. Use a tier "
                "of one instance or of the cluster."
            )


def _change(row: Mapping[str, Any], where: str) -> FleetChange:
    """The change of a row; InputError with its place."""
    given = {name: value for name, value in row.items() if value not in (None, "", [])}
    if len(given.keys() - set(COLUMNS)) or "time" not in given or not given.keys() & {"start", "drain", "replace"}:
        columns = ",".join(COLUMNS)
        raise InputError(f"{where}: a change has a time, and start, drain or replace. Its columns are {columns}.")
    (start,) = _numbers([given.get("start", 0)], where)
    startup = seconds_of(given["startup"], where) if "startup" in given else 0.0
    drain, replace = (tuple(_numbers(_listed(given.get(name)), where)) for name in ("drain", "replace"))
    return FleetChange(seconds_of(given["time"], where), start, drain, replace, startup, where)


def _listed(value: object) -> Iterable[object]:
    """The values of a list, or of a text with spaces between them."""
    if isinstance(value, list):
        return value
    return value.split() if isinstance(value, str) else [] if value is None else [value]


def _numbers(values: Iterable[object], where: str) -> list[int]:
    """Whole numbers of at least 0."""
    numbers = [number_of(value) for value in values]
    if any(number is None or not 0 <= number <= MAX_INSTANCES or number != int(number) for number in numbers):
        raise InputError(f"{where}: start, drain and replace take whole numbers of at least 0.")
    return [int(number) for number in numbers if number is not None]
