"""The plan of a run: constants that all tasks share, helpers for digests, ranges and shards, a bound of memory.

The bound is computed before the stages start, with the task size that fits this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..._base.arrays import offsets_of, split_mix
from ..._base.errors import UsageError
from ..._base.memory import PROGRAM, MemoryNeed
from ..._native import numbering
from ..._native.numbering import DigestIndex
from ..contributors import counted_kind
from ..release_options import Profile
from ..session_times import ServiceEstimate
from .store import Store

BLOCKS = 1 << 20  # approximate block references in memory for one task
ENCODED = "encoded"  # folder of the rows of each part
DOMAINS = "domains"  # file of the digests of all isolation domains, by first appearance in time
SAMPLES = 256  # rows of a part whose times `sample_times` returns
ALONE = 2**64 - 1  # marks a member that is a single request
UNKNOWN = np.array([1, 2**64 - 3], dtype=np.uint64)  # in place of a contributor: all requests without a known one
MANY = np.array([0, 2**64 - 2], dtype=np.uint64)  # in place of a contributor: k or more contributors


@dataclass(frozen=True)
class TaskPlan:
    """The constants of a run. It can be pickled, and contains neither text nor key."""

    store: Store
    parts: int  # of the log
    shards: int
    block_size: int
    tail: str  # of the released trace
    profile: Profile
    counts: str  # kind of contributors, see contributors.py; none if nothing is split
    cuts: Sequence[float]  # times that divide the ranges
    first_time: int | None = 0  # of the log, in ns; None if times are a trace's, in ms
    has_sessions: bool = False
    has_types: bool = False
    rows: str = ENCODED  # folder of the rows of each part
    has_outputs: bool = False  # rows have blocks of outputs after those of prompts
    has_service: bool = False  # rows have measured service times
    session_times: bool = False  # find what the requests of sessions waited for
    service_model: ServiceEstimate | None = None  # estimates the service times that are not measured
    carried: Sequence[str] = ()  # those of session, parent, turn and measured columns that the rows have, and domain
    rows_before: Sequence[int] = ()  # range -> requests in earlier ranges
    blocks_before: Sequence[int] = ()  # range -> new blocks in earlier ranges
    sessions_before: Sequence[int] = ()  # range -> new sessions in earlier ranges

    @property
    def ranges(self) -> int:
        """The number of time ranges."""
        return len(self.cuts) + 1

    def updated(self, **values) -> TaskPlan:
        """The plan with values that are known now."""
        return replace(self, **values)


def split_by(profile: Profile, users: str | None, sessions: bool) -> str:
    """The kind of contributors among which blocks are split, as `counted_kind` gives it; "none" if nothing is split.

    >>> split_by(Profile("standard", k=3), "users", True), split_by(Profile("exact"), "users", True)
    ('users', 'none')
    """
    return "none" if profile.k == 1 else counted_kind(profile.k_counts, users, sessions)


def sample_times(time: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times of some of a part's rows, ascending, and the number of blocks from each to the next: for `cuts`.

    >>> sample_times(np.array([3, 5]), np.array([0, 2, 9]))
    (array([3, 5]), array([2, 7]))
    """
    at = np.arange(0, len(time), max(1, -(-len(time) // SAMPLES)))
    return time[at], np.diff(np.append(offsets[at], offsets[-1]))


def cuts(times: list[np.ndarray], blocks: list[np.ndarray], count: int) -> list[float]:
    """Times that divide the rows into at most `count` ranges of about equal blocks; equal times stay together.

    `times` and `blocks` have the result of `sample_times` for each part.

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
    """The sum of the counts before each.

    >>> sums_before([3, 1, 2])
    [0, 3, 4]
    """
    return offsets_of(counts)[:-1].tolist()


def numbers_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A number for each pair of numbers, by first appearance (int64).

    >>> numbers_of(np.array([0, 0, 7, 0]), np.array([0, 1, 0, 0]))
    array([0, 1, 2, 0])
    """
    second = second.astype(np.uint64) + np.uint64(1)  # a digest is never zero
    # the index uses the low bits of a word, so consecutive numbers would collide
    spread = split_mix(first.astype(np.uint64) + second * np.uint64(0x9E3779B97F4A7C15))
    return DigestIndex().add(np.stack([spread, second], axis=1)).astype(np.int64)


def shard_of(digests: np.ndarray, shards: int) -> np.ndarray:
    """The shard of each digest, by its highest bits; tables use the lowest.

    >>> shard_of(np.array([[1 << 63, 0], [5, 5]], dtype=np.uint64), 4)
    array([2, 0])
    """
    return ((digests[:, 0] >> np.uint64(32)) * np.uint64(shards) >> np.uint64(32)).astype(np.int64)


def by_time(
    columns: dict[str, np.ndarray], digests: np.ndarray, offsets: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Rows, sorted stably by their column `time`: their columns, and the digests of their blocks with the offsets.

    >>> rows = {"time": np.array([7, 5])}
    >>> by_time(rows, np.array([[1, 1], [2, 2], [3, 3]]), np.array([0, 1, 3]))[1].tolist()
    [[2, 2], [3, 3], [1, 1]]
    """
    order = np.argsort(columns["time"], kind="stable")
    if (order[1:] > order[:-1]).all():
        return columns, digests, offsets
    place, offsets = numbering.take(np.arange(len(digests)), offsets, order)
    return {name: values[order] for name, values in columns.items()}, digests[place], offsets


def firsts_of(numbers) -> np.ndarray:
    """The first place of each number; numbers count 0, 1, 2, ... by first appearance.

    >>> firsts_of(np.array([0, 1, 0, 2]))
    array([0, 1, 3])
    """
    if not len(numbers):
        return np.empty(0, dtype=np.int64)
    greatest = np.maximum.accumulate(numbers)
    return np.flatnonzero(np.concatenate([[True], greatest[1:] > greatest[:-1]]))


BLOCK = 200  # bytes a block reference in a task: digests, contributors, and their sorts
ROW_BLOCK, ROW = 53, 310  # bytes a block reference (each may be a distinct block) and a request in one process
MIN_BLOCKS = 1 << 16  # smaller tasks would mostly open files


def running(workers: int, blocks: int = BLOCKS) -> MemoryNeed:
    """The memory of the workers and of the main process.

    >>> running(2).total
    719430400
    """
    return MemoryNeed({
        f"for {workers + 1} processes": (workers + 1) * PROGRAM,
        f"for {blocks:,} blocks in each of {workers} tasks at once": workers * BLOCK * blocks,
    }, remedy="Try fewer --workers")  # fmt: skip


def in_one_process(requests: int, blocks: int) -> MemoryNeed:
    """The memory to number and release rows without stages, after they were encoded.

    >>> in_one_process(1_000_000, 30_000_000).total
    2000000000
    """
    return MemoryNeed({
        "for this process": PROGRAM,
        f"for {blocks:,} block references": ROW_BLOCK * blocks,
        f"for {requests:,} requests": ROW * requests,
    }, remedy="One process holds all rows for these options: give it more memory, or choose other options")  # fmt: skip


def blocks_within(memory: int | None, workers: int) -> int:
    """The blocks in each task that keep all workers within `memory` bytes; UsageError if it is too small.

    >>> blocks_within(None, 2) == BLOCKS, blocks_within(500_000_000, 2)
    (True, 500000)
    """
    if memory is None:
        return BLOCKS
    running(workers, MIN_BLOCKS).require(memory)
    return min(BLOCKS, (memory - (workers + 1) * PROGRAM) // (workers * BLOCK))


def require_folder(memory: int | None, output) -> None:
    """UsageError if memory is limited and the output is not a data set: other audits have no memory bound."""
    from ...formats.dataset import has_dataset_name

    if memory is not None and not has_dataset_name(output):
        raise UsageError("--memory needs a data set as output. Try -o FOLDER.dataset.")
