"""Session trees from drawn turns: which turns a session gets, its contexts, its times and its blocks.

`deal` hands out turns so that each part of a session has its sums; `contexts` orders them so that no context shrinks
below the least; `arrivals` follows the dependencies; `paths` writes the block ids. Twin: tests/reference/sessions.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import next_half


def deal(values, targets, weights, cell, item, members, starts, seed, swaps):
    """Exchange items between slots until the sums of each cell are near its targets.

    A cell's error is the sum over quantities of weight * (sum of its items' values - target) ** 2. `swaps` times, two
    random slots of one class are taken, and exchange their items if the errors of their cells shrink.

    Args: `values`: item, quantity -> value; `targets` and `weights`: cell, quantity; `cell`: slot -> cell; `item`:
    slot -> item, changed in place (int64); `members`: the slots of each class, end to end, by `starts`; classes are
    taken equally often per member, but small ones at least as if they had a sixteenth of all slots.

    >>> item = np.array([0, 1])
    >>> deal([[1.0], [5.0]], [[5.0], [1.0]], np.ones((2, 1)), [0, 1], item, [0, 1], [0, 2], 7, 20)
    >>> item
    array([1, 0])
    """
    values, targets, weights = (np.ascontiguousarray(array, dtype=np.float64) for array in (values, targets, weights))
    cell, members, starts = (np.ascontiguousarray(array, dtype=np.int64) for array in (cell, members, starts))
    if item.dtype != np.int64 or len(item) != len(cell) or len(members) != len(cell) or starts.item(-1) != len(members):
        raise ValueError("item, cell and members must have one value for each slot")
    if values.ndim != 2 or targets.shape != weights.shape or targets.shape[1:] != values.shape[1:]:
        raise ValueError("values, targets and weights must have the same quantities")
    if not len(cell):
        return
    if min(cell.min(), item.min(), members.min()) < 0 or cell.max() >= len(targets) or item.max() >= len(values):
        raise IndexError("a slot has a cell or an item that does not exist")
    if members.max() >= len(cell) or (np.diff(starts) < 0).any():
        raise IndexError("members: not slots by class")
    error = -targets
    np.add.at(error, cell, values[item])
    sizes = np.diff(starts)
    shares = np.where(sizes > 1, np.maximum(sizes, len(cell) / 16), 0.0)
    if shares.sum() > 0:
        bounds = np.minimum(np.cumsum(shares) / shares.sum() * 2.0**32, 2.0**32).astype(np.int64)
        bounds[np.flatnonzero(shares).max() :] = 1 << 32
        _deal(values, error, weights, cell, item, members, starts, bounds, seed & ((1 << 64) - 1), swaps)


def contexts(starts, first, net, item, least):
    """The tokens of each request of the chains: int64.

    Chain c has one request more than items: `item[starts[c]:starts[c + 1]]`. Its first request has `first[c]` tokens,
    and each item adds `net[item]`, which may be negative. An item that would leave less than `least` tokens is put
    behind the next item of the chain that does not; where there is none, the context has `least` tokens.

    >>> item = np.array([1, 0])
    >>> contexts([0, 2], [10], [50, -20], item, 5), item
    (array([10, 60, 40]), array([0, 1]))
    """
    starts, first, net = (np.ascontiguousarray(array, dtype=np.int64) for array in (starts, first, net))
    if item.dtype != np.int64 or starts[0] != 0 or starts.item(-1) != len(item) or len(first) != len(starts) - 1:
        raise ValueError("starts and first do not match the items")
    if (np.diff(starts) < 0).any() or (len(item) and not 0 <= item.min() <= item.max() < len(net)):
        raise IndexError("starts fall, or an item does not exist")
    tokens = np.empty(len(item) + len(first), dtype=np.int64)
    _contexts(starts, first, net, item, least, tokens)
    return tokens


def arrivals(base, completion, delay, service, start, join_offsets, join):
    """The time of each request: float64.

    A request waits for `base` (-1 = for nothing: it arrives at its `start`): for its end where `completion` is 1, else
    for its start; and for the end of each row of `join[join_offsets[r]:join_offsets[r + 1]]`. It arrives `delay` after
    the last of them. All these rows are earlier.

    >>> arrivals([-1, 0], [0, 1], [0, 5], [20, 20], [100, 0], [0, 0, 0], [])
    array([100., 125.])
    """
    base, completion, join_offsets, join = (
        np.ascontiguousarray(array, dtype=np.int64) for array in (base, completion, join_offsets, join)
    )
    delay, service, start = (np.ascontiguousarray(array, dtype=np.float64) for array in (delay, service, start))
    rows = np.arange(len(base))
    if len({len(base), len(completion), len(delay), len(service), len(start), len(join_offsets) - 1}) > 1:
        raise ValueError("the columns have different lengths")
    if join_offsets[0] != 0 or join_offsets.item(-1) != len(join) or (np.diff(join_offsets) < 0).any():
        raise ValueError("join_offsets do not match join")
    late = (base >= rows).any() or (join >= np.repeat(rows, np.diff(join_offsets))).any()
    if late or (len(join) and join.min() < 0) or (len(base) and base.min() < -1):
        raise IndexError("a request waits for a row that is not earlier")
    times = np.empty(len(base), dtype=np.float64)
    _arrivals(base, completion, delay, service, start, join_offsets, join, times)
    return times


def paths(offsets, source, keep, root, numbers, distinct):
    """Block ids of each request, numbered by first appearance: int64, end to end by `offsets`.

    The first `keep[r]` blocks of request r are those of its `source`, an earlier row. Where `source` is -1, they are
    `numbers[root[r]:root[r] + keep[r]]`: shared numbers below `distinct`, which get their ids at first use. All further
    blocks are new.

    >>> paths([0, 2, 5], [-1, 0], [1, 1], [0, 0], [7], 8)
    array([0, 1, 0, 2, 3])
    """
    offsets, source, keep, root, numbers = (
        np.ascontiguousarray(array, dtype=np.int64) for array in (offsets, source, keep, root, numbers)
    )
    rows, length = np.arange(len(source)), np.diff(offsets)
    if not len(offsets) - 1 == len(source) == len(keep) == len(root) or (length < 0).any() or offsets[0] != 0:
        raise ValueError("the columns have different lengths, or offsets fall")
    if (source >= rows).any() or (source < -1).any() or (keep < 0).any() or (keep > length).any():
        raise IndexError("a request keeps blocks of a row that is not earlier, or more than it has")
    from_row, from_root = source >= 0, (source < 0) & (keep > 0)
    if (keep[from_row] > length[source[from_row]]).any():
        raise IndexError("a request keeps more blocks than its source has")
    if from_root.any() and (root[from_root].min() < 0 or (root + keep)[from_root].max() > len(numbers)):
        raise IndexError("root: outside the numbers")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < distinct:
        raise IndexError("numbers: not below distinct")
    ids = np.empty(offsets.item(-1), dtype=np.int64)
    _paths(offsets, source, keep, root, numbers, np.full(distinct, -1, dtype=np.int64), ids)
    return ids


def _deal(values, error, weights, cell, item, members, starts, bounds, seed, swaps):
    state: cython.ulonglong = seed
    _n: cython.longlong
    c: cython.Py_ssize_t
    q: cython.Py_ssize_t
    a: cython.longlong
    b: cython.longlong
    here: cython.longlong
    there: cython.longlong
    draw: cython.ulonglong
    size: cython.ulonglong
    gain: cython.double
    change: cython.double
    with cython.nogil:
        for _n in range(swaps):
            draw = next_half(cython.address(state))
            c = 0
            while draw >= cython.cast(cython.ulonglong, bounds[c]):
                c += 1
            size = starts[c + 1] - starts[c]
            a = members[starts[c] + cython.cast(cython.longlong, (next_half(cython.address(state)) * size) >> 32)]
            b = members[starts[c] + cython.cast(cython.longlong, (next_half(cython.address(state)) * size) >> 32)]
            here = cell[a]
            there = cell[b]
            if here == there:
                continue
            gain = 0
            for q in range(values.shape[1]):
                change = values[item[b], q] - values[item[a], q]
                gain += change * (
                    weights[here, q] * (2 * error[here, q] + change)
                    - weights[there, q] * (2 * error[there, q] - change)
                )
            if gain < 0:
                for q in range(values.shape[1]):
                    change = values[item[b], q] - values[item[a], q]
                    error[here, q] += change
                    error[there, q] -= change
                item[a], item[b] = item[b], item[a]


def _contexts(starts, first, net, item, least, tokens):
    c: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    out: cython.Py_ssize_t = 0
    now: cython.longlong
    moved: cython.longlong
    with cython.nogil:
        for c in range(first.shape[0]):
            now = first[c]
            tokens[out] = now
            out += 1
            for i in range(starts[c], starts[c + 1]):
                j = i
                while j < starts[c + 1] and now + net[item[j]] < least:
                    j += 1
                if i < j < starts[c + 1]:
                    moved = item[j]
                    item[j] = item[i]
                    item[i] = moved
                now += net[item[i]]
                if now < least:
                    now = least
                tokens[out] = now
                out += 1


def _arrivals(base, completion, delay, service, start, join_offsets, join, times):
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    ready: cython.double
    end: cython.double
    with cython.nogil:
        for r in range(base.shape[0]):
            if base[r] < 0 and join_offsets[r] == join_offsets[r + 1]:
                times[r] = start[r]
                continue
            ready = 0
            if base[r] >= 0:
                ready = times[base[r]] + (service[base[r]] if completion[r] else 0)
            for i in range(join_offsets[r], join_offsets[r + 1]):
                end = times[join[i]] + service[join[i]]
                if end > ready:
                    ready = end
            times[r] = ready + delay[r]


def _paths(offsets, source, keep, root, numbers, id_of, ids):
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    number: cython.longlong
    fresh: cython.longlong = 0
    with cython.nogil:
        for r in range(source.shape[0]):
            at = offsets[r]
            if source[r] >= 0:
                for i in range(keep[r]):
                    ids[at + i] = ids[offsets[source[r]] + i]
            else:
                for i in range(keep[r]):
                    number = numbers[root[r] + i]
                    if id_of[number] < 0:
                        id_of[number] = fresh
                        fresh += 1
                    ids[at + i] = id_of[number]
            for i in range(at + keep[r], offsets[r + 1]):
                ids[i] = fresh
                fresh += 1
