"""Number the ids of a file by first appearance, piece by piece, and collect their properties.

Ids that already count up by first appearance, from any first id, need no memory. Others need a table of ID_BYTES for
each distinct id.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._base.errors import InputError, UsageError
from ..._base.mixing import mix
from .marks import IDENTIFIER

ID_BYTES = 64  # a distinct id in the table, including the table's growth


class IdNumbers:
    """Numbers ids 0, 1, 2, ... by first appearance; UsageError if that needs a table of more than `max_ids` ids.

    >>> numbers = IdNumbers()
    >>> numbers.see(np.array([7, 8, 7])), numbers.see(np.array([3, 8]))
    (array([0, 1, 0]), array([2, 1]))
    >>> numbers.distinct, numbers.smallest, numbers.largest, numbers.in_order
    (3, 3, 8, False)
    """

    distinct: int
    smallest: int
    largest: int
    in_order: bool

    def __init__(self, max_ids: int | None = None) -> None:
        self._max_ids, self.distinct = max_ids, 0
        self.smallest = self.largest = 0  # of the ids
        self.in_order = True  # each new id is greater than all ids before it
        self._first = 0  # the first id
        self._index: Any = None  # the table, if ids are not contiguous
        self._raw: list[np.ndarray] = []

    @property
    def are_dense(self) -> bool:
        """Whether the ids are contiguous by first appearance, so that no table is needed."""
        return self._index is None

    @property
    def raw(self) -> np.ndarray:
        """The distinct ids that look like digests."""
        return np.concatenate([np.empty(0, np.int64), *self._raw])

    def see(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of more ids (int64); new ids get the next numbers."""
        if not len(ids):
            return np.empty(0, dtype=np.int64)
        if not self.distinct:
            self._first = self.smallest = self.largest = ids.item(0)
        from ..._native.numbering import count_on

        before = self.distinct
        if self._index is None:
            if (distinct := count_on(ids, self._first, before)) >= 0:
                self.distinct = distinct
                self._note(np.arange(before, self.distinct) + np.int64(self._first))
                return ids - np.int64(self._first)  # wraps, and adding the first id wraps back
            self._make_index()
        numbers = self._in_index(ids)
        self.distinct = self._index.distinct
        self._require_memory()
        fresh, new = np.empty(self.distinct - before, dtype=np.int64), numbers >= before
        fresh[numbers[new][::-1] - before] = ids[new][::-1]
        self._note(fresh)
        return numbers

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of ids that were seen before (int64); InputError for others."""
        numbers = ids - np.int64(self._first) if self._index is None else self._in_index(ids)
        if len(ids) and not (numbers.min() >= 0 and numbers.max() < self.distinct):
            raise InputError("the file changed during the audit. Audit it again when it is complete.")
        return numbers

    def dense_ids(self, numbers: np.ndarray) -> np.ndarray:
        """The ids of numbers (int64), if `are_dense`."""
        return numbers + np.int64(self._first)

    def _make_index(self):
        from ..._native.numbering import DigestIndex

        self._require_memory()
        self._index = DigestIndex()
        for start in range(0, self.distinct, 1 << 18):
            self._in_index(np.arange(start, min(self.distinct, start + (1 << 18))) + np.int64(self._first))

    def _in_index(self, ids) -> np.ndarray:
        keys = np.ones((len(ids), 2), dtype=np.uint64)
        keys[:, 0] = mix(ids.view(np.uint64))  # the index distributes keys by their bits
        return self._index.add(keys).astype(np.int64)

    def _require_memory(self):
        if self._max_ids is not None and self.distinct > self._max_ids:
            raise UsageError(
                f"the ids are not contiguous, and a table of them ({ID_BYTES} bytes for each distinct block) does not "
                "fit into --memory. Renumber them with `kvtrace convert`, or raise --memory."
            )

    def _note(self, fresh):
        if not len(fresh):
            return
        follows = fresh[0] > self.largest or len(fresh) == self.distinct  # or these are the first ids
        self.in_order &= bool(follows and (fresh[1:] > fresh[:-1]).all())
        self.smallest, self.largest = min(self.smallest, int(fresh.min())), max(self.largest, int(fresh.max()))
        raw = fresh[(fresh < 0) | (fresh > IDENTIFIER)]
        self._raw += [raw] if len(raw) else []
