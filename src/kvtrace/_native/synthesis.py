"""The paths that generators make: of session trees, through a core tree, and stretched."""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix_once, next_half

# Session trees from drawn turns: which turns a session gets, its contexts, its times and its blocks.
#
# `deal` hands out turns so that each part of a session has its sums; `contexts` orders them so that no context shrinks
# below the least; `arrivals` follows the dependencies; `paths` writes the block ids. Twin: tests/reference/sessions.py.


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


# Paths of requests through a core tree. A node gets its block numbers at its first use.
#
# Twin: tests/reference/tree.py.


def core_paths(node, own, parent, length, first, fresh):
    """The paths of requests: each follows the core tree from the root to a node, then has blocks of its own.

    `node` is each request's last core node, and `own` its number of own blocks. `parent` and `length` (in blocks)
    describe the tree, parents before their children; node 0 is the root and has no blocks. `first` is the first block
    number of each node, -1 before its first use, and is filled in. `fresh` is the next new number.
    Returns the paths end to end (int32), their offsets, and the next new number.

    >>> first = np.full(3, -1, dtype=np.int32)
    >>> tree = np.array([-1, 0, 1], dtype=np.int32), np.array([0, 2, 1])
    >>> core_paths(np.array([1, 2]), np.array([1, 0]), *tree, first, 0)
    (array([0, 1, 2, 0, 1, 3], dtype=int32), array([0, 3, 6]), 4)
    """
    node = np.ascontiguousarray(node, dtype=np.int32)
    parent, length = np.ascontiguousarray(parent, dtype=np.int32), np.ascontiguousarray(length, dtype=np.int64)
    if not len(parent) == len(length) == len(first):
        raise ValueError("parent, length and first have different lengths")
    if len(node) and not (0 <= node.min() and node.max() < len(parent)):
        raise IndexError("node: a number is outside the tree")
    depth = np.empty_like(length)  # node -> blocks from the root to its end
    _depths(parent, length, depth)
    offsets = np.zeros(len(node) + 1, dtype=np.int64)
    np.cumsum(depth[node] + own, out=offsets[1:])
    blocks = np.empty(offsets.item(-1), dtype=np.int32)
    fresh = _core_paths(node, offsets, parent, length, depth, first, fresh, blocks)
    return blocks, offsets, fresh


def _depths(parent, length, depth):
    node: cython.Py_ssize_t
    with cython.nogil:
        for node in range(parent.shape[0]):
            depth[node] = length[node]
            if parent[node] >= 0:
                depth[node] += depth[parent[node]]


def _core_paths(node, offsets, parent, length, depth, first, fresh, blocks):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    step: cython.int
    top: cython.longlong
    with cython.nogil:
        for row in range(node.shape[0]):
            # new nodes are the deeper end of the path: number them from the last one upwards
            step = node[row]
            while step >= 0 and first[step] < 0:
                step = parent[step]
            top = 0 if step < 0 else depth[step]
            step = node[row]
            while step >= 0 and first[step] < 0:
                first[step] = cython.cast(cython.int, fresh + depth[step] - length[step] - top)
                step = parent[step]
            if depth[node[row]] > top:
                fresh += depth[node[row]] - top
            step = node[row]
            while step >= 0:
                at = offsets[row] + depth[step] - length[step]
                for i in range(length[step]):
                    blocks[at + i] = cython.cast(cython.int, first[step] + i)
                step = parent[step]
            for i in range(offsets[row] + depth[node[row]], offsets[row + 1]):
                blocks[i] = cython.cast(cython.int, fresh)
                fresh += 1
    return fresh


# Stretches or shrinks the core and the own blocks of paths, with several copies of the core.
#
# A core block maps to a run of new numbers in each copy of the core. The only state is a hash table from (block, copy)
# to the first of them, so memory grows with the core, not with the rows. Twin: tests/reference/stretch.py.


def core_blocks(blocks, offsets, core):
    """Number of leading core blocks of each path: int64.

    >>> core_blocks(np.array([0, 1, 0, 2], dtype=np.int32), np.array([0, 2, 4]), np.array([True, False, False]))
    array([1, 1])
    """
    blocks, core = np.ascontiguousarray(blocks, dtype=np.int32), np.ascontiguousarray(core, dtype=np.uint8)
    if len(blocks) and not (0 <= blocks.min() and blocks.max() < len(core)):
        raise IndexError("blocks: a number is outside `core`")
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    _core_blocks(blocks, np.ascontiguousarray(offsets, dtype=np.int64), core, counts)
    return counts


def stretch(blocks, offsets, kept, partial, copy, copies, end, new_offsets, keys, firsts, fresh):
    """The stretched paths (int32, end to end by new_offsets), the next new number, and the keys added to the table.

    kept: row -> number of its leading core blocks; partial: row -> 1 if the last of them is not full; copy: row -> its
    copy of the core. A core block at depth d (1, 2, ...) gets end[d] - end[d - 1] numbers, a partial one at least 1.
    keys and firsts are the hash table: a power of two of slots, at most half of them used; -1 is empty.

    >>> table = np.full(8, -1), np.full(8, -1, dtype=np.int32)
    >>> row = np.array([0, 1], dtype=np.int32), np.array([0, 2]), np.array([1]), np.array([0]), np.array([0])
    >>> stretch(*row, 1, np.array([0, 2, 4]), np.array([0, 3]), *table, 0)
    (array([0, 1, 2], dtype=int32), 3, 1)
    """
    blocks = np.ascontiguousarray(blocks, dtype=np.int32)
    if len(keys) != len(firsts) or len(keys) & (len(keys) - 1):
        raise ValueError("the number of the table's slots is not a power of two")
    longs = [np.ascontiguousarray(array, dtype=np.int64) for array in (offsets, kept, copy, end, new_offsets)]
    stretched = np.empty(longs[4].item(-1), dtype=np.int32)
    partial = np.ascontiguousarray(partial, dtype=np.uint8)
    fresh, added = _stretch(blocks, *longs, partial, copies, keys, firsts, fresh, stretched)
    return stretched, fresh, added


def moved(keys, firsts, slots):
    """The same table with `slots` slots.

    >>> keys, firsts = moved(np.array([7, -1]), np.array([3, -1], dtype=np.int32), 4)
    >>> sorted(zip(keys.tolist(), firsts.tolist()))
    [(-1, -1), (-1, -1), (-1, -1), (7, 3)]
    """
    new_keys, new_firsts = np.full(slots, -1, dtype=np.int64), np.full(slots, -1, dtype=np.int32)
    _move(keys, firsts, new_keys, new_firsts)
    return new_keys, new_firsts


def _slot(key, keys):
    """The slot of a key, or the empty slot to put it."""
    mask: cython.ulonglong = keys.shape[0] - 1
    slot: cython.ulonglong = mix_once(cython.cast(cython.ulonglong, key)) & mask
    while keys[slot] >= 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


def _core_blocks(blocks, offsets, core, counts):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for row in range(counts.shape[0]):
            i = offsets[row]
            while i < offsets[row + 1] and core[blocks[i]]:
                i += 1
            counts[row] = i - offsets[row]


def _stretch(blocks: cython.const[cython.int][::1], offsets: cython.const[cython.longlong][::1],
             kept: cython.const[cython.longlong][::1], copy: cython.const[cython.longlong][::1],
             end: cython.const[cython.longlong][::1], new_offsets: cython.const[cython.longlong][::1],
             partial: cython.const[cython.uchar][::1], copies: cython.longlong, keys: cython.longlong[::1],
             firsts: cython.int[::1], fresh: cython.longlong, stretched: cython.int[::1]):  # fmt: skip
    row: cython.Py_ssize_t
    d: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    width: cython.longlong
    key: cython.longlong
    added: cython.Py_ssize_t = 0
    with cython.nogil:
        for row in range(kept.shape[0]):
            at = new_offsets[row]
            for d in range(kept[row]):
                width = end[d + 1] - end[d]
                if width == 0 and partial[row] and d + 1 == kept[row]:
                    width = 1
                if width == 0:
                    continue
                key = cython.cast(cython.longlong, blocks[offsets[row] + d]) * copies + copy[row]
                slot = _slot(key, keys)
                if keys[slot] < 0:
                    keys[slot] = key
                    firsts[slot] = cython.cast(cython.int, fresh)
                    fresh += width
                    added += 1
                for i in range(width):
                    stretched[at + i] = cython.cast(cython.int, firsts[slot] + i)
                at += width
            while at < new_offsets[row + 1]:
                stretched[at] = cython.cast(cython.int, fresh)
                fresh += 1
                at += 1
    return fresh, added


def _move(keys, firsts, new_keys, new_firsts):
    old: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    with cython.nogil:
        for old in range(keys.shape[0]):
            if keys[old] >= 0:
                slot = _slot(keys[old], new_keys)
                new_keys[slot] = keys[old]
                new_firsts[slot] = firsts[old]
