"""One publisher of KV events: the caches of its data-parallel ranks, and the numbers of its batches.

Each rank numbers its batches by itself, and the numbers rise by one. A larger step means that batches were lost; a
smaller number is a batch that came twice (a replay), or, if its time is later, an engine that started again with an
empty cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .kv_batches import event_batch
from .kv_blocks import MAX_BLOCKS
from .kv_counts import StoreCounts
from .kv_stores import EXTEND_S, KvStores

MAX_RANKS = 1024


@dataclass(repr=False)
class KvPublisher:
    """The rows and the counts of one publisher's batches.

    >>> publisher = KvPublisher()
    >>> publisher.add([1.5, [["BlockStored", [7], None, [1, 2], 2]]], sequence=0)
    []
    >>> publisher.rest()[0]["prompt_token_ids"], publisher.counts().resident
    ([1, 2], 1)
    """

    max_blocks: int = MAX_BLOCKS  # of each rank
    extend_s: float = EXTEND_S
    _caches: dict[int | None, KvStores] = field(default_factory=dict)
    _next: dict[int | None, int] = field(default_factory=dict)  # rank -> the number of its next batch
    _latest_s: dict[int | None, float] = field(default_factory=dict)  # rank -> the time of its latest batch
    _lost: int = 0
    _restarts: int = 0

    def add(self, value: Any, sequence: int | None = None) -> list[dict[str, Any]]:
        """Take a decoded batch and its number, if it has one; the rows that are complete now.

        Raises:
            RowError: the value is not a batch of KV events. Nothing of it was taken.
        """
        batch = event_batch(value)
        rank = batch.rank if batch.rank in self._caches or len(self._caches) < MAX_RANKS else None
        number = batch.sequence if sequence is None else sequence
        rows: list[dict[str, Any]] = []
        expected, latest_s = self._next.get(rank), self._latest_s.get(rank, 0.0)
        if number is not None:
            if expected is not None and number < expected:
                if batch.time_s <= latest_s:
                    return []  # a replayed batch
                self._restarts += 1
                self._lost += number
                rows = self._caches[rank].clear()
            elif expected is not None:
                self._lost += number - expected
            self._next[rank] = number + 1
        self._latest_s[rank] = max(latest_s, batch.time_s) if number is None else batch.time_s
        if rank not in self._caches:
            self._caches[rank] = KvStores(self.max_blocks, self.extend_s)
        return rows + self._caches[rank].add(batch)

    def rest(self) -> list[dict[str, Any]]:
        """The rows that are not complete yet, rank by rank."""
        return [row for cache in self._caches.values() for row in cache.rest()]

    def counts(self) -> StoreCounts:
        """The counts of all ranks together."""
        total = StoreCounts(lost=self._lost, restarts=self._restarts)
        for cache in self._caches.values():
            total += cache.counts
        return total
