"""The sums of one pass over the blocks, and their memory: uses, parents, tails, first blocks, contributors.

A table holds the first contributors of each block. If it would be larger than TABLE, ranges of blocks are counted one
after the other, each in its own pass.

The memory for a data set is bounded from its manifest, before any row is read. Each request needs its columns and
arrays derived from them. Each distinct block needs its number of uses (4 bytes) and, one after the other, its parent
(5), its conversation (13), and its first k contributors (6, and 4 k in a table of at most TABLE bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import UsageError
from ..._base.memory import PIECE, PROGRAM, MemoryNeed
from ...formats import dataset as datasets
from ...formats import parquet
from ...formats.memory_needs import whole
from ...privacy import profiles
from ...trace.columns import NUMBERS
from ..profiles import PROFILES
from .block_feed import ID_BYTES, AuditedRequests, IdNumbers, RequestBlocks


class BlockSums:
    """The sums that several checks share."""

    uses: UseCounts
    parents: BlockParents
    tails: TailBlocks

    def __init__(self, requests: AuditedRequests, distinct: int):
        self.uses, self.parents = UseCounts(distinct), BlockParents(distinct, requests.full_blocks)
        self.tails = TailBlocks(requests)
        self.first_block = np.full(len(requests), -1, dtype=np.int32)  # request -> its first block, -1 = none

    def take(self, blocks: RequestBlocks) -> None:
        """Add the blocks of some requests."""
        self.uses.take(blocks)
        self.parents.take(blocks)
        self.tails.take(blocks)
        filled = np.diff(blocks.offsets) > 0
        self.first_block[blocks.requests[filled]] = blocks.numbers[blocks.offsets[:-1][filled]]


class UseCounts:
    """The number of uses of each block. Memory: 4 bytes a block, and 4 more if outputs have blocks."""

    def __init__(self, distinct: int):
        self.in_prompts = np.zeros(distinct, dtype=np.int32)
        self.anywhere = self.in_prompts  # in prompts and outputs

    def take(self, blocks: RequestBlocks) -> None:
        """Count the blocks of some requests."""
        if blocks.output_numbers is not None and self.anywhere is self.in_prompts:
            self.anywhere = self.in_prompts.copy()
        if self.anywhere is not self.in_prompts:
            for numbers, _ in blocks.segments():
                np.add.at(self.anywhere, numbers, np.int32(1))
        np.add.at(self.in_prompts, blocks.numbers, np.int32(1))


UNSEEN = -2


class BlockParents:
    """The parents of the blocks seen so far. Memory: 5 bytes a block, and 4 more if outputs have blocks."""

    are_one: bool

    def __init__(self, distinct: int, full_blocks: np.ndarray):
        self.are_one = True  # each block of prompts and outputs always has the same parent
        self._full_blocks = full_blocks
        self._several = 0
        self._are_dense, self._distinct = True, 0  # numbers so far count up by first appearance, in a forest
        self._in_prompts: Any = np.full(distinct, UNSEEN, dtype=np.int32)  # block -> parent, -1 = root
        self._anywhere: Any = None  # the same in prompts and outputs
        self._has_several: Any = np.zeros(distinct, dtype=bool)

    @property
    def several(self) -> int:
        """The number of blocks with more than one parent in prompts."""
        return self._several if self._has_several is None else int(np.count_nonzero(self._has_several))

    def end(self) -> None:
        """Free the parents after the last block; the results stay."""
        self._several = self.several
        self._in_prompts = self._anywhere = self._has_several = None

    def take(self, blocks: RequestBlocks) -> None:
        """Add the blocks of some requests."""
        if self._take_forest(blocks):
            return
        numbers, before = blocks.numbers, _before(blocks.numbers, blocks.offsets, -1)
        wrong = _differing(self._in_prompts, numbers, before)
        self._has_several[numbers[wrong]] = True
        self.are_one = self.are_one and not wrong.any()
        if blocks.output_numbers is None and self._anywhere is None:
            return
        if self._anywhere is None:
            self._anywhere = self._in_prompts.copy()
        self.are_one = self.are_one and not _differing(self._anywhere, numbers, before).any()
        if blocks.output_numbers is not None:
            begins = self._last_full(blocks)
            after = _before(blocks.output_numbers, blocks.output_offsets, begins)
            self.are_one = self.are_one and not _differing(self._anywhere, blocks.output_numbers, after).any()

    def _take_forest(self, blocks: RequestBlocks) -> bool:
        """Add rows without outputs whose blocks form a forest with all before them, faster; False for other rows."""
        from ..._native import forest

        if not self._are_dense or blocks.output_numbers is not None:
            self._are_dense = False
            return False
        full = self._full_blocks[blocks.requests]
        self._distinct, gap, fork = forest.verify(
            blocks.numbers, blocks.offsets, full, parent=self._in_prompts, distinct=self._distinct
        )
        self._are_dense = gap < 0 and fork < 0
        return self._are_dense

    def _last_full(self, blocks):
        """The last full block of each prompt, which is the parent of its output; -1 = none."""
        last = np.full(len(blocks.requests), -1, dtype=np.int64)
        full = np.minimum(self._full_blocks[blocks.requests], np.diff(blocks.offsets))
        has_full = full > 0
        last[has_full] = blocks.numbers[blocks.offsets[:-1][has_full] + full[has_full] - 1]
        return last


def _before(numbers, offsets, first) -> np.ndarray:
    """The predecessor of each number in its row; `first` for the first of a row."""
    before = np.empty_like(numbers)
    before[1:] = numbers[:-1]
    filled = np.diff(offsets) > 0
    before[offsets[:-1][filled]] = first if np.isscalar(first) else first[filled]
    return before


def _differing(parent, numbers, before) -> np.ndarray:
    """Whether each block has another parent than at its first appearance; new blocks are added to `parent`."""
    new = parent[numbers] == UNSEEN
    parent[numbers[new][::-1]] = before[new][::-1]  # reversed, so that the first appearance is written last
    return parent[numbers] != before


class TailBlocks:
    """The tail blocks of prompts, and of prompts with their outputs. Memory: 8 bytes each."""

    def __init__(self, requests: AuditedRequests):
        self._requests = requests
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int32), np.empty(0, np.int32))]

    @property
    def numbers(self) -> np.ndarray:
        """The block of each tail."""
        return np.concatenate([numbers for numbers, _ in self._pieces])

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of each tail, in the order of `numbers`."""
        return np.concatenate([tokens for _, tokens in self._pieces])

    def take(self, blocks: RequestBlocks) -> None:
        """Add the tail blocks of some requests."""
        if self._requests.tail == "dropped":
            return
        tokens, size = self._requests.input_length[blocks.requests], self._requests.block_size
        self._add(blocks.numbers, blocks.offsets, tokens % size)
        if blocks.output_numbers is not None:
            both = tokens + self._requests.output_length[blocks.requests]
            self._add(blocks.output_numbers, blocks.output_offsets, both % size)

    def _add(self, numbers, offsets, tokens):
        has_tail = (tokens > 0) & (np.diff(offsets) > 0)
        self._pieces.append((numbers[offsets[1:][has_tail] - 1].astype(np.int32), tokens[has_tail].astype(np.int32)))


CONTRIBUTOR_BITS = (1 << 31) - 1  # in a (block, contributor) pair


def count_up_to(limit: int, feed: Callable[..., Any], contributor: np.ndarray, uses: np.ndarray) -> np.ndarray:
    """The different contributors of each block, at most `limit` (block -> uint8, or int32 for a large limit).

    Args:
        limit: the largest count of interest.
        feed: passes all blocks, piece by piece, to a function.
        contributor: request -> contributor.
        uses: block -> number of its references.

    >>> blocks = RequestBlocks(np.array([0, 1, 2]), np.array([0, 1, 0, 1, 0]), np.array([0, 2, 4, 5]))
    >>> count_up_to(3, lambda take: take(blocks), np.array([0, 1, 2]), np.array([3, 2])).tolist()
    [3, 2]
    """
    count = np.minimum(uses, 1).astype(np.uint8 if limit < 256 else np.int32)
    several = uses > 1
    room = max(1, TABLE // (4 * limit))
    for low in range(0, len(uses), room):
        table = _ContributorTable(count[low : low + room], several[low : low + room], limit)

        def take(blocks: RequestBlocks, low=low, table=table):
            for numbers, offsets in blocks.segments():
                inside = several[numbers]
                inside &= (numbers >= low) & (numbers < low + room)
                owner = np.repeat(contributor[blocks.requests], np.diff(offsets))
                table.add(numbers[inside] - low, owner[inside])

        feed(take)
    return count


class _ContributorTable:
    """The first contributors of some blocks, and their number."""

    def __init__(self, count: np.ndarray, several: np.ndarray, limit: int):
        self._count, self._limit = count, limit
        self._contributors = np.full((len(count), limit), -1, dtype=np.int32)
        count[several] = 0

    def add(self, block: np.ndarray, contributor: np.ndarray) -> None:
        """Add pairs of a block and its contributor; pairs may repeat."""
        is_open = self._count[block] < self._limit
        pair = np.unique(block[is_open] * (CONTRIBUTOR_BITS + 1) + contributor[is_open])
        block, contributor = pair >> 31, pair & CONTRIBUTOR_BITS
        starts = np.flatnonzero(np.append(True, block[1:] != block[:-1])[: len(block)])
        place = np.arange(len(block)) - np.repeat(starts, np.diff(np.append(starts, len(block))))
        for turn in range(min(self._limit, int(place.max(initial=-1)) + 1)):  # each block at most once in a turn
            self._add_each(block[place == turn], contributor[place == turn])

    def _add_each(self, block, contributor):
        is_counted = (self._contributors[block] == contributor[:, None]).any(axis=1)
        fresh = ~is_counted & (self._count[block] < self._limit)
        block, contributor = block[fresh], contributor[fresh]
        self._contributors[block, self._count[block]] = contributor
        self._count[block] += 1


TABLE = 1 << 26  # bytes of contributors
USUAL_K = 3  # the k to report for a profile without k-sharing

REQUEST = 180  # bytes a request: its columns, a copy of rows that are not in order of time, and sorts in `anonymity`
LINK = 40  # bytes a session or parent
FIELD = 60  # bytes a value of another field; most are Python strings
USER = 300  # bytes a line of the file of users
USES, INFERRED, IN_OUTPUTS = 4, 13, 8  # bytes a distinct block
COUNTED = 6  # bytes a distinct block, without the table of contributors


@dataclass(frozen=True)
class AuditMemory:
    """The memory that the audit of a data set may use; UsageError if its bound is larger."""

    memory: int  # bytes
    dataset: datasets.Dataset
    options: dict[str, Any]

    @classmethod
    def of(cls, path, memory: int | None, **options) -> AuditMemory | None:
        """The limit for the audit of a path; None if `memory` is None."""
        if memory is None:
            return None
        if not datasets.is_dataset(path):
            raise UsageError("--memory needs a data set. Make one with `kvtrace convert`.")
        dataset = datasets.open_dataset(path)
        audit_memory(dataset, **options).require(memory)
        return cls(memory, dataset, options)

    @property
    def max_ids(self) -> int:
        """The maximum size of a table of ids that are not contiguous, in the remaining memory."""
        return (self.memory - audit_memory(self.dataset, **self.options).total) // ID_BYTES

    def require(self, numbers: IdNumbers) -> None:
        """Check the bound again with the actual distinct blocks; the manifest may state fewer."""
        table = 0 if numbers.are_dense else ID_BYTES * numbers.distinct
        audit_memory(self.dataset, distinct=numbers.distinct, **self.options).require(self.memory - table)


def audit_memory(
    dataset: datasets.Dataset,
    *,
    profile: str | None = None,
    users: bool = False,
    against: str | Path | None = None,
    distinct: int | None = None,
) -> MemoryNeed:
    """The maximum memory that the audit of a data set uses.

    Args:
        dataset: the audited data set.
        profile: as for `audit`.
        users: whether the audit reads a file of users.
        against: an earlier release, which is read whole; its size is known only if it is a data set.
        distinct: the actual distinct blocks, if the manifest states fewer.
    """
    names = dataset.names()
    fields = LINK * sum(name in names for name in ("session", "parent", *NUMBERS))
    fields += FIELD * sum(name not in (*parquet.NEEDED, *parquet.OTHERS) for name in names)
    outputs, blocks = bool(dataset.output_blocks), max(dataset.distinct, distinct or 0)
    table = min(TABLE, 4 * (_k(dataset, profile) + 1) * blocks)  # k known contributors, and all unknown ones as one
    terms = {
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(dataset):,} requests": len(dataset) * (REQUEST + fields + 16 * outputs + USER * users),
        f"for {blocks:,} distinct blocks": (USES + IN_OUTPUTS * outputs) * blocks
        + max(INFERRED * blocks, COUNTED * blocks + table),
    }
    is_known = against is None or datasets.is_dataset(against)
    if against is not None and is_known:
        terms["for the earlier release"] = whole(datasets.open_dataset(against), "--against").total
    remedy = "Try it without --against" if against is not None else "Try a machine with more memory"
    return MemoryNeed(terms, remedy=remedy, beyond=None if is_known else "the earlier release")


def _k(dataset, profile) -> int:
    """The maximum contributors counted for a block."""
    meta = dataset.meta if isinstance(dataset.meta.get("profile"), str) else {}
    graded = profiles.declared(meta) if profile is None else profiles.profile(profile)
    return max(USUAL_K, (graded or PROFILES["standard"]).k)
