"""Sharing of blocks: counts contributors, splits blocks among them, and infers conversations from shared blocks.

Twin: tests/reference/sharing.py.
"""

import cython
import numpy as np

UNKNOWN = -1
SEVERAL = 3  # a block shared by at least this many conversations identifies none of them


def count_contributors(parts, contributor, distinct):
    """Number of different contributors of each block (int32).

    `parts` are (ids, offsets) of the prompts and, if present, of the outputs. `contributor` is each request's
    contributor, from 0.

    >>> count_contributors([(np.array([0, 1, 0, 2, 0, 1]), np.array([0, 2, 4, 6]))], np.array([0, 1, 0]), 3)
    array([2, 1, 1], dtype=int32)
    """
    contributor, order = _by_contributor(contributor)
    count, last = np.zeros(distinct, dtype=np.int32), np.full(distinct, UNKNOWN, dtype=np.int64)
    ids, offsets = _joined([_checked(part, len(contributor), distinct) for part in parts])
    _count(ids, offsets, order, contributor, count, last)
    return count


def split(parts, contributor, is_split, distinct):
    """The ids of each part after splitting: a split block gets one id per contributor (int64).

    >>> split([(np.array([0, 1, 0, 1]), np.array([0, 2, 4]))], np.array([0, 1]), np.array([False, True]), 2)
    [array([0, 1, 0, 2])]
    """
    contributor, order = _by_contributor(contributor)
    checked = [_checked(part, len(contributor), distinct) for part in parts]
    ids, offsets = _joined(checked)
    new, copy = np.empty_like(ids), np.full(distinct, UNKNOWN, dtype=np.int64)
    taken = np.zeros(distinct, dtype=bool)  # block -> whether a contributor has taken its original id
    last = np.full(distinct, UNKNOWN, dtype=np.int64)
    _split(ids, offsets, order, contributor, np.ascontiguousarray(is_split).view(np.uint8), copy, last,
           taken.view(np.uint8), distinct, new)  # fmt: skip
    return _parted(new, checked)


def infer(hash_ids, offsets, tails, distinct):
    """The conversation of each request, from 0 (int64), inferred from the requests before it.

    Take the last request that used the deepest block of this request's shared prefix. This request continues its
    conversation if the shared prefix is all of that request's path (with `tails`: all except a last, perhaps partial,
    block) and fewer than three conversations have used the block.

    >>> infer(np.array([0, 1, 0, 1, 2, 0, 3]), np.array([0, 2, 5, 7]), False, 4)
    array([0, 0, 1])
    """
    rows = len(offsets) - 1
    return Inference(rows, tails, distinct).go_on(hash_ids, offsets, 0).astype(np.int64)


class Inference:
    """The state of `infer`, for a trace that comes in pieces: 13 bytes per block and 8 per request.

    >>> found = Inference(3, False, 4)
    >>> found.go_on(np.array([0, 1, 0, 1, 2]), np.array([0, 2, 5]), 0)
    array([0, 0], dtype=int32)
    >>> found.go_on(np.array([0, 3]), np.array([0, 2]), 2)
    array([1], dtype=int32)
    """

    def __init__(self, rows, tails, distinct):
        self.session = np.empty(rows, dtype=np.int32)  # request -> its conversation, for the rows so far
        self._blocks = np.empty(rows, dtype=np.int32)  # request -> number of blocks of its prompt
        self._last = np.full(distinct, UNKNOWN, dtype=np.int32)  # block -> the last row that used it
        self._users = np.full((distinct, SEVERAL - 1), UNKNOWN, dtype=np.int32)  # block -> its first conversations
        self._several = np.zeros(distinct, dtype=np.uint8)  # block -> whether there are more
        self._tails, self._fresh = bool(tails), 0

    def go_on(self, hash_ids, offsets, row):
        """The conversations of the next requests; the first of them is `row`."""
        ids, offsets = _checked((hash_ids, offsets), len(offsets) - 1, len(self._last))
        stop = row + len(offsets) - 1
        if not 0 <= row <= stop <= len(self.session):
            raise ValueError("the rows are outside the trace")
        self._blocks[row:stop] = np.diff(offsets)
        self._fresh = _infer(ids, offsets, row, self._tails, self._fresh, self._blocks, self._last, self._users,
                             self._several, self.session)  # fmt: skip
        return self.session[row:stop]


def _by_contributor(contributor):
    contributor = np.ascontiguousarray(contributor, dtype=np.int64)
    if len(contributor) and contributor.min() < 0:
        raise ValueError("contributor: a value is negative")
    return contributor, np.argsort(contributor, kind="stable")


def _checked(part, rows, distinct):
    ids, offsets = (np.ascontiguousarray(array, dtype=np.int64) for array in part)
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets.item(-1) != len(ids) or (np.diff(offsets) < 0).any():
        raise ValueError("the offsets do not match the rows or the ids")
    if len(ids) and not (0 <= ids.min() and ids.max() < distinct):
        raise ValueError("an id is negative, or not below the number of distinct ids")
    return ids, offsets


def _joined(parts):
    """The parts' ids, joined row by row."""
    if len(parts) == 1:
        return parts[0]
    lengths = [np.diff(offsets) for _, offsets in parts]
    offsets = np.concatenate([[0], np.cumsum(sum(lengths))]).astype(np.int64)
    joined = np.empty(offsets.item(-1), dtype=np.int64)
    for place, part in zip(_places(lengths, offsets), parts, strict=True):
        joined[place] = part[0]
    return joined, offsets


def _parted(joined, parts):
    """The inverse of `_joined`."""
    if len(parts) == 1:
        return [joined]
    lengths = [np.diff(offsets) for _, offsets in parts]
    offsets = np.concatenate([[0], np.cumsum(sum(lengths))]).astype(np.int64)
    return [joined[place] for place in _places(lengths, offsets)]


def _places(lengths, offsets):
    """The positions of each part's ids among the joined ids."""
    before = offsets[: len(offsets) - 1].copy()
    for count in lengths:
        starts = np.cumsum(count) - count
        yield np.repeat(before - starts, count) + np.arange(count.sum())
        before += count


def _count(ids, offsets, order, contributor, count, last):
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    row: cython.longlong
    with cython.nogil:
        for r in range(order.shape[0]):  # in order of contributors
            row = order[r]
            for i in range(offsets[row], offsets[row + 1]):
                if last[ids[i]] != contributor[row]:
                    last[ids[i]] = contributor[row]
                    count[ids[i]] += 1


def _split(ids, offsets, order, contributor, is_split, copy, last, taken, fresh, new):
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    row: cython.longlong
    block: cython.longlong
    with cython.nogil:
        for r in range(order.shape[0]):
            row = order[r]
            for i in range(offsets[row], offsets[row + 1]):
                block = ids[i]
                if not is_split[block]:
                    new[i] = block
                    continue
                if last[block] != contributor[row]:
                    last[block] = contributor[row]
                    if taken[block]:
                        copy[block] = fresh
                        fresh += 1
                    else:
                        copy[block] = block
                        taken[block] = 1
                new[i] = copy[block]


def _infer(ids, offsets, first, tails, fresh, blocks, last, users, several, session):
    r: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    u: cython.Py_ssize_t
    depth: cython.Py_ssize_t
    block: cython.longlong
    before: cython.int
    known: cython.bint
    with cython.nogil:
        for r in range(offsets.shape[0] - 1):
            row = first + r
            depth = 0
            while offsets[r] + depth < offsets[r + 1] and last[ids[offsets[r] + depth]] >= 0:
                depth += 1
            session[row] = fresh
            if depth > 0:
                block = ids[offsets[r] + depth - 1]
                before = last[block]
                if depth >= blocks[before] - tails and not several[block]:
                    session[row] = session[before]
            fresh += session[row] == fresh
            for i in range(offsets[r], offsets[r + 1]):
                block = ids[i]
                last[block] = cython.cast(cython.int, row)
                known = False
                for u in range(users.shape[1]):
                    if users[block, u] == session[row] or users[block, u] < 0:
                        users[block, u] = session[row]
                        known = True
                        break
                if not known:
                    several[block] = 1
    return fresh
