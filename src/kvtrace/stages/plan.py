"""What all tasks of a run know: how many there are of each kind, what a block is, and what its release does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..privacy.profiles import Profile
from .store import Store

BLOCKS = 1 << 20  # references that a task holds, about
ALONE = 2**64 - 1  # marks a holder that is one request
MANY = np.array([0, 0], dtype=np.uint64)  # in place of a holder: k of them or more


@dataclass(frozen=True)
class Plan:
    """The constants of a run; it can be pickled, and holds neither text nor key."""

    store: Store
    parts: int  # of the log
    shards: int
    block_size: int
    tail: str  # what the released trace has
    profile: Profile
    counts: str  # who holds blocks: users, sessions, requests; none where nothing is split
    cuts: Sequence[int]  # times in ns at which ranges end, and the next one begins
    first_time: int = 0  # of the log, in ns
    has_sessions: bool = False
    has_types: bool = False
    rows_before: Sequence[int] = ()  # range -> requests in those before it
    blocks_before: Sequence[int] = ()  # range -> new blocks in those before it
    sessions_before: Sequence[int] = ()  # range -> new sessions in those before it

    @property
    def ranges(self) -> int:
        """How many ranges of time there are."""
        return len(self.cuts) + 1

    def knowing(self, **found) -> Plan:
        """The plan with what has become known."""
        return replace(self, **found)


def cuts(times: list[np.ndarray], blocks: list[np.ndarray], count: int) -> list[int]:
    """Times at which at most `count` ranges of about as many blocks each end; rows of one time are never parted.

    Of each part: times of some of its rows, rising, and how many blocks it has from each to the next.

    >>> cuts([np.array([0, 10]), np.array([10, 20])], [np.array([2, 1]), np.array([3, 1])], 2)
    [10]
    """
    time, count_of = np.concatenate(times), np.concatenate(blocks)
    order = np.argsort(time, kind="stable")
    time, count_of = time[order], count_of[order]
    reached = np.cumsum(count_of)
    at = np.searchsorted(reached - count_of, reached[-1:] * np.arange(1, count) / count)
    return np.unique(time[at[at < len(time)]]).tolist()


def before(counts: Sequence[int]) -> list[int]:
    """The sum of all counts before each.

    >>> before([3, 1, 2])
    [0, 3, 4]
    """
    return [0, *np.cumsum(counts).tolist()][:-1]


def shard_of(digests: np.ndarray, shards: int) -> np.ndarray:
    """The shard of each digest, by its highest bits; the lowest place it in a table.

    >>> shard_of(np.array([[1 << 63, 0], [5, 5]], dtype=np.uint64), 4)
    array([2, 0])
    """
    return ((digests[:, 0] >> np.uint64(32)) * np.uint64(shards) >> np.uint64(32)).astype(np.int64)


def offsets_of(lengths) -> np.ndarray:
    """Where rows of these lengths begin and end, laid end to end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
