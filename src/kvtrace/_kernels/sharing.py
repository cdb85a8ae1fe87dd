"""Who shares which block: holders counted, blocks split among them, and conversations inferred request by request.

Twin: tests/reference/sharing.py.
"""

import cython
import numpy as np

UNKNOWN = -1
SEVERAL = 3  # conversations that share a block, from which on it tells nothing of who goes on with it


def count_holders(parts, holder, distinct):
    """How many different holders use each block (int32).

    `parts` are (ids, offsets) of the prompts and, where there are some, of the outputs; `holder` is one of each
    request, from 0 on.

    >>> count_holders([(np.array([0, 1, 0, 2, 0, 1]), np.array([0, 2, 4, 6]))], np.array([0, 1, 0]), 3)
    array([2, 1, 1], dtype=int32)
    """
    holder, order = _by_holder(holder)
    count, last = np.zeros(distinct, dtype=np.int32), np.full(distinct, UNKNOWN, dtype=np.int64)
    ids, offsets = _joined([_checked(part, len(holder), distinct) for part in parts])
    _count(ids, offsets, order, holder, count, last)
    return count


def split(parts, holder, is_split, distinct):
    """The ids of each part, where a block that is split has an id of its own for each holder (int64).

    >>> split([(np.array([0, 1, 0, 1]), np.array([0, 2, 4]))], np.array([0, 1]), np.array([False, True]), 2)
    [array([0, 1, 0, 2])]
    """
    holder, order = _by_holder(holder)
    checked = [_checked(part, len(holder), distinct) for part in parts]
    ids, offsets = _joined(checked)
    new, copy = np.empty_like(ids), np.full(distinct, UNKNOWN, dtype=np.int64)
    taken = np.zeros(distinct, dtype=bool)  # block -> its own id has gone to one of its holders
    last = np.full(distinct, UNKNOWN, dtype=np.int64)
    _split(ids, offsets, order, holder, np.ascontiguousarray(is_split).view(np.uint8), copy, last,
           taken.view(np.uint8), distinct, new)  # fmt: skip
    return _parted(new, checked)


def infer(hash_ids, offsets, tails, distinct):
    """The conversation of each request, from 0 on (int64), by what requests up to it shared.

    A request goes on with the conversation of the last request that used its deepest block seen before, if that request
    ends there, unless three conversations or more have used the block. It ends there where all its blocks are shared;
    with `tails`, all but the last, which may be partial.

    >>> infer(np.array([0, 1, 0, 1, 2, 0, 3]), np.array([0, 2, 5, 7]), False, 4)
    array([0, 0, 1])
    """
    ids, offsets = _checked((hash_ids, offsets), len(offsets) - 1, distinct)
    session = np.empty(len(offsets) - 1, dtype=np.int64)
    last = np.full(distinct, UNKNOWN, dtype=np.int64)  # block -> the last row that used it
    users = np.full((distinct, SEVERAL - 1), UNKNOWN, dtype=np.int64)  # block -> its first conversations
    several = np.zeros(distinct, dtype=np.uint8)  # block -> whether there are more
    _infer(ids, offsets, bool(tails), last, users, several, session)
    return session


def _by_holder(holder):
    holder = np.ascontiguousarray(holder, dtype=np.int64)
    if len(holder) and holder.min() < 0:
        raise ValueError("a request has no holder")
    return holder, np.argsort(holder, kind="stable")


def _checked(part, rows, distinct):
    ids, offsets = (np.ascontiguousarray(array, dtype=np.int64) for array in part)
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any():
        raise ValueError("offsets are not those of the rows")
    if len(ids) and not (0 <= ids.min() and ids.max() < distinct):
        raise ValueError("an id is not below the number of distinct ids")
    return ids, offsets


def _joined(parts):
    """Each row's ids of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = [np.diff(offsets) for _, offsets in parts]
    offsets = np.concatenate([[0], np.cumsum(sum(lengths))]).astype(np.int64)
    joined = np.empty(int(offsets[-1]), dtype=np.int64)
    for place, part in zip(_places(lengths, offsets), parts, strict=True):
        joined[place] = part[0]
    return joined, offsets


def _parted(joined, parts):
    """What _joined joined, apart again."""
    if len(parts) == 1:
        return [joined]
    lengths = [np.diff(offsets) for _, offsets in parts]
    offsets = np.concatenate([[0], np.cumsum(sum(lengths))]).astype(np.int64)
    return [joined[place] for place in _places(lengths, offsets)]


def _places(lengths, offsets):
    """Where each part's ids are among the joined ones."""
    before = offsets[:-1].copy()
    for count in lengths:
        starts = np.concatenate([[0], np.cumsum(count)])[:-1]
        yield np.repeat(before - starts, count) + np.arange(count.sum())
        before += count


def _count(ids: cython.const[cython.longlong][::1], offsets: cython.const[cython.longlong][::1],
           order: cython.const[cython.longlong][::1], holder: cython.const[cython.longlong][::1],
           count: cython.int[::1], last: cython.longlong[::1]):  # fmt: skip
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    row: cython.longlong
    with cython.nogil:
        for r in range(order.shape[0]):  # holder after holder
            row = order[r]
            for i in range(offsets[row], offsets[row + 1]):
                if last[ids[i]] != holder[row]:
                    last[ids[i]] = holder[row]
                    count[ids[i]] += 1


def _split(ids: cython.const[cython.longlong][::1], offsets: cython.const[cython.longlong][::1],
           order: cython.const[cython.longlong][::1], holder: cython.const[cython.longlong][::1],
           is_split: cython.const[cython.uchar][::1], copy: cython.longlong[::1], last: cython.longlong[::1],
           taken: cython.uchar[::1], fresh: cython.longlong, new: cython.longlong[::1]):  # fmt: skip
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
                if last[block] != holder[row]:
                    last[block] = holder[row]
                    if taken[block]:
                        copy[block] = fresh
                        fresh += 1
                    else:
                        copy[block] = block
                        taken[block] = 1
                new[i] = copy[block]


def _infer(ids: cython.const[cython.longlong][::1], offsets: cython.const[cython.longlong][::1],
           tails: cython.int, last: cython.longlong[::1], users: cython.longlong[:, ::1],
           several: cython.uchar[::1], session: cython.longlong[::1]):  # fmt: skip
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    u: cython.Py_ssize_t
    depth: cython.Py_ssize_t
    block: cython.longlong
    before: cython.longlong
    fresh: cython.longlong = 0
    known: cython.bint
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            depth = 0
            while offsets[row] + depth < offsets[row + 1] and last[ids[offsets[row] + depth]] >= 0:
                depth += 1
            session[row] = fresh
            if depth > 0:
                block = ids[offsets[row] + depth - 1]
                before = last[block]
                if depth >= offsets[before + 1] - offsets[before] - tails and not several[block]:
                    session[row] = session[before]
            fresh += session[row] == fresh
            for i in range(offsets[row], offsets[row + 1]):
                block = ids[i]
                last[block] = row
                known = False
                for u in range(users.shape[1]):
                    if users[block, u] == session[row] or users[block, u] < 0:
                        users[block, u] = session[row]
                        known = True
                        break
                if not known:
                    several[block] = 1
