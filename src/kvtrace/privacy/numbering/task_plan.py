"""What all tasks of a run know: how many there are of each kind, what a block is, and what its release does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..._base.errors import UsageError
from ..._base.mixing import split_mix
from ..._native.ids import DigestIndex
from ..profiles import Profile
from .store import Store

BLOCKS = 1 << 20  # references that a task holds, about
SAMPLES = 256  # rows of a part whose times are told
ALONE = 2**64 - 1  # marks a contributor that is one request
MANY = np.array([0, 2**64 - 2], dtype=np.uint64)  # in place of a contributor: k of them or more


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
    cuts: Sequence[float]  # times at which ranges end, and the next one begins
    first_time: int | None = 0  # of the log, in ns; None where times are a trace's, in ms
    has_sessions: bool = False
    has_types: bool = False
    carried: Sequence[str] = ()  # of session, parent, turn: what the rows have already
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


def counts_of(profile: Profile, users: bool, sessions: bool, names: str) -> str:
    """The contributors to blocks, as `privacy.contributors` chooses them; UsageError where it would infer them.

    >>> counts_of(Profile("standard", k=3), False, True, "--users FILE")
    'sessions'
    """
    if profile.k == 1:
        return "none"
    if profile.k_counts == "requests":
        return "requests"
    if users and profile.k_counts in ("auto", "users"):
        return "users"
    if sessions:
        return "sessions"
    raise UsageError(
        "neither users nor sessions are known, and to infer conversations takes all blocks in one place. Try "
        f"{names}, --k-counts requests or --k 1."
    )


def told_of(time: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times of some of a part's rows, which rise, and how many blocks it has from each to the next: for `cuts`.

    >>> told_of(np.array([3, 5]), np.array([0, 2, 9]))
    (array([3, 5]), array([2, 7]))
    """
    at = np.arange(0, len(time), max(1, -(-len(time) // SAMPLES)))
    return time[at], np.diff(np.append(offsets[at], offsets[-1]))


def cuts(times: list[np.ndarray], blocks: list[np.ndarray], count: int) -> list[float]:
    """Times at which at most `count` ranges of about as many blocks each end; rows of one time are never parted.

    Of each part: times of some of its rows, rising, and how many blocks it has from each to the next.

    >>> cuts([np.array([0, 10]), np.array([10, 20])], [np.array([2, 1]), np.array([3, 1])], 2)
    [20]
    """
    time, count_of = np.concatenate(times), np.concatenate(blocks)
    order = np.argsort(time, kind="stable")
    time, count_of = time[order], count_of[order]
    reached = np.cumsum(count_of)
    at = np.searchsorted(reached - count_of, reached[-1:] * np.arange(1, count) / count)
    return np.unique(time[at[at < len(time)]]).tolist()


def sums_before(counts: Sequence[int]) -> list[int]:
    """The sum of all counts before each.

    >>> sums_before([3, 1, 2])
    [0, 3, 4]
    """
    return [0, *np.cumsum(counts).tolist()][:-1]


def numbers_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A number for each pair of numbers from 0 on, by first appearance (int64).

    >>> numbers_of(np.array([0, 0, 7, 0]), np.array([0, 1, 0, 0]))
    array([0, 1, 2, 0])
    """
    second = second.astype(np.uint64) + np.uint64(1)  # no digest is zeros
    # the index is placed by the low bits of a word: numbers that follow each other would stand in each other's way
    spread = split_mix(first.astype(np.uint64) + second * np.uint64(0x9E3779B97F4A7C15))
    return DigestIndex().add(np.stack([spread, second], axis=1)).astype(np.int64)


def shard_of(digests: np.ndarray, shards: int) -> np.ndarray:
    """The shard of each digest, by its highest bits; the lowest place it in a table.

    >>> shard_of(np.array([[1 << 63, 0], [5, 5]], dtype=np.uint64), 4)
    array([2, 0])
    """
    return ((digests[:, 0] >> np.uint64(32)) * np.uint64(shards) >> np.uint64(32)).astype(np.int64)


def offsets_of(lengths) -> np.ndarray:
    """Where rows of these lengths begin and end, laid end to end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def firsts_of(numbers) -> np.ndarray:
    """Where each number first stands; numbers are 0, 1, 2, ... by first appearance.

    >>> firsts_of(np.array([0, 1, 0, 2]))
    array([0, 1, 3])
    """
    if not len(numbers):
        return np.empty(0, dtype=np.int64)
    greatest = np.maximum.accumulate(numbers)
    return np.flatnonzero(np.concatenate([[True], greatest[1:] > greatest[:-1]]))


def tails_of(plan: Plan, input_length: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Which references are tails that get an id of their own."""
    found = np.zeros(int(offsets[-1]), dtype=bool)
    if plan.tail == "unique":
        partial = (input_length % plan.block_size > 0) & (np.diff(offsets) > 0)
        found[offsets[1:][partial] - 1] = True
    return found
