"""Ids as they stand in a file, numbered by first appearance while they come in pieces, and what these ids are like.

Ids that are so numbered already, from whichever first id, cost nothing; others need a table: MOST bytes a distinct id.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base.errors import InputError, UsageError
from ..._base.mixing import mix
from .marks import IDENTIFIER

MOST = 64  # bytes a distinct id that is in the table, its growth included


class Numbers:
    """Numbers ids 0, 1, 2, ... by first appearance; UsageError where that needs a table of more than `room` ids.

    >>> numbers = Numbers()
    >>> numbers.see(np.array([7, 8, 7])), numbers.see(np.array([3, 8]))
    (array([0, 1, 0]), array([2, 1]))
    >>> numbers.distinct, numbers.least, numbers.greatest, numbers.in_order
    (3, 3, 8, False)
    """

    def __init__(self, room: int | None = None) -> None:
        self._room, self.distinct = room, 0
        self.least = self.greatest = 0  # of the ids
        self.in_order = True  # each new id is greater than all before
        self._first = 0  # the first id
        self._index: Any = None  # where ids do not simply follow each other
        self._raw: list[np.ndarray] = []

    @property
    def are_dense(self) -> bool:
        """Whether the ids follow each other as they appear, so that no table is needed."""
        return self._index is None

    @property
    def raw(self) -> np.ndarray:
        """The distinct ids that are digests and no numbers."""
        return np.concatenate([np.empty(0, np.int64), *self._raw])

    def see(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of the next ids (int64); new ones get the next numbers."""
        if not len(ids):
            return np.empty(0, dtype=np.int64)
        if not self.distinct:
            self._first = self.least = self.greatest = ids.item(0)
        before = self.distinct
        if self._index is None:
            numbers = ids - np.int64(self._first)  # an overflow leads back to where it came from
            reached = np.maximum.accumulate(np.append(before - 1, numbers))
            if (numbers >= 0).all() and (numbers <= reached[:-1] + 1).all():
                self.distinct = int(reached[-1]) + 1
                self._note(np.arange(before, self.distinct) + np.int64(self._first))
                return numbers
            self._make_index()
        numbers = self._in_index(ids)
        self.distinct = self._index.distinct
        self._require_room()
        fresh, new = np.empty(self.distinct - before, dtype=np.int64), numbers >= before
        fresh[numbers[new][::-1] - before] = ids[new][::-1]
        self._note(fresh)
        return numbers

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of ids that were all seen (int64); InputError if they were not."""
        numbers = ids - np.int64(self._first) if self._index is None else self._in_index(ids)
        if len(ids) and not (numbers.min() >= 0 and numbers.max() < self.distinct):
            raise InputError("the file changed while it was read. Audit it once it is whole.")
        return numbers

    def _make_index(self):
        from ..._native.ids import DigestIndex

        self._require_room()
        self._index = DigestIndex()
        for start in range(0, self.distinct, 1 << 18):
            self._in_index(np.arange(start, min(self.distinct, start + (1 << 18))) + np.int64(self._first))

    def _in_index(self, ids) -> np.ndarray:
        keys = np.ones((len(ids), 2), dtype=np.uint64)
        keys[:, 0] = mix(ids.view(np.uint64))  # the index places a key by its bits
        return self._index.add(keys).astype(np.int64)

    def _require_room(self):
        if self._room is not None and self.distinct > self._room:
            raise UsageError(
                f"ids do not follow each other, and a table of them does not fit into --memory: {MOST} bytes more a "
                "distinct block. Number them anew with `kvtrace convert`, or give more memory."
            )

    def _note(self, fresh):
        if not len(fresh):
            return
        follows = fresh[0] > self.greatest or len(fresh) == self.distinct  # or the first of all
        self.in_order &= bool(follows and (fresh[1:] > fresh[:-1]).all())
        self.least, self.greatest = min(self.least, int(fresh.min())), max(self.greatest, int(fresh.max()))
        raw = fresh[(fresh < 0) | (fresh > IDENTIFIER)]
        self._raw += [raw] if len(raw) else []
