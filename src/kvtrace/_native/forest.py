"""Walks over prompts and their parents: forests of ids, shared beginnings, uses of blocks."""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix_once

# Walks over the rows of a trace: check that ids form a forest, find parents, and make ids that form one.
#
# Each row's prompt comes first, then its output, whose blocks follow the prompt's last FULL block. Twin:
# tests/reference/forest.py.


UNSEEN = -2  # parent of an id that has not appeared yet


def verify(hash_ids, offsets, full_blocks, output_ids=None, output_offsets=None, parent=None, distinct=0):
    """Check that ids are dense and form a forest: (distinct ids, row of the first gap, row of the first fork).

    A gap is an id that is neither known nor the next new one. A fork is an id with two different parents. -1 = none.
    For the next piece of a trace: `distinct` ids have appeared so far, and have their parents in `parent`, which is
    updated.

    >>> verify(np.array([0, 1, 2, 1]), np.array([0, 2, 4]), np.array([2, 2]))
    (3, -1, 1)
    >>> parent = np.array([-1, UNSEEN])
    >>> verify(np.array([0, 1]), np.array([0, 2]), np.array([2]), parent=parent, distinct=1), parent
    ((2, -1, -1), array([-1,  0]))
    """
    if parent is None:
        references = len(hash_ids) + (0 if output_ids is None else len(output_ids))
        reach = _reach(hash_ids, output_ids, references)
        parent = np.empty(reach, dtype=np.int32 if reach < 2**31 else np.int64)  # read only where it was written
    arrays = _arrays(hash_ids, offsets, full_blocks, output_ids, output_offsets)  # a parent is int32 or int64
    if parent.dtype == np.int32:
        return _walk[cython.int](*arrays, parent, distinct)
    return _walk[cython.longlong](*arrays, parent, distinct)


def parents(hash_ids, offsets, full_blocks, output_ids, output_offsets, distinct):
    """The parent of each block, -1 for a root: int64, `distinct` values.

    >>> parents(np.array([0, 1, 0, 2]), np.array([0, 2, 4]), np.array([2, 2]), None, None, 3)
    array([-1,  0,  0])
    """
    parent = np.full(distinct, UNSEEN, dtype=np.int64)
    verify(hash_ids, offsets, full_blocks, output_ids, output_offsets, parent)
    return parent


def depths(parent):
    """Number of blocks from the root to each block, including itself; parents come before their children.

    >>> depths(np.array([-1, 0, 0, 2]))
    array([1, 2, 2, 3])
    """
    parent = np.ascontiguousarray(parent, dtype=np.int64)
    depth = np.empty_like(parent)
    _depths(parent, depth)
    return depth


def runs(parent, visits):
    """The chain of each block: a block with as many visits as its parent continues the parent's chain.

    >>> runs(np.array([-1, 0, 1, 1]), np.array([2, 2, 1, 1]))
    array([0, 0, 1, 2])
    """
    parent = np.ascontiguousarray(parent, dtype=np.int64)
    chain = np.empty_like(parent)
    _runs(parent, np.ascontiguousarray(visits, dtype=np.int64), chain)
    return chain


def chain(hash_ids, offsets, full_blocks, output_ids, output_offsets, distinct):
    """New ids that form a forest: one for each distinct (previous new id, id) pair, by first appearance.

    Returns the new ids of the prompts, and those of the outputs or None.
    """
    arrays = _arrays(hash_ids, offsets, full_blocks, output_ids, output_offsets)
    references = len(arrays[0]) + len(arrays[3])
    slots = 1 << max(10, int(2 * references).bit_length())
    keys, numbers = np.empty(slots, dtype=np.uint64), np.full(slots, -1, dtype=np.int64)
    chained, chained_output = np.empty_like(arrays[0]), np.empty_like(arrays[3])
    _chain(*arrays, distinct, keys, numbers, chained, chained_output)
    return chained, None if output_ids is None else chained_output


def _arrays(hash_ids, offsets, full_blocks, output_ids, output_offsets):
    """Contiguous int64 arrays with checked shapes. Without outputs, each row has an empty output."""
    if output_ids is None:
        output_ids, output_offsets = np.empty(0, dtype=np.int64), np.zeros(len(offsets), dtype=np.int64)
    arrays = [
        np.ascontiguousarray(array, dtype=np.int64)
        for array in (hash_ids, offsets, full_blocks, output_ids, output_offsets)
    ]
    if not len(arrays[1]) == len(arrays[2]) + 1 == len(arrays[4]):
        raise ValueError("offsets and full_blocks have different numbers of rows")
    if arrays[1].item(-1) != len(arrays[0]) or arrays[4].item(-1) != len(arrays[3]):
        raise ValueError("the last offset is not the number of ids")
    return arrays


def _reach(hash_ids, output_ids, references):
    """Upper bound of the number of distinct ids, if the ids are dense: their maximum + 1 or the references."""
    greatest = max((int(ids.max()) for ids in (hash_ids, output_ids) if ids is not None and len(ids)), default=-1)
    return min(greatest + 1, references)


def _walk(hash_ids, offsets, full, output_ids, output_offsets, parent, distinct):
    row: cython.Py_ssize_t
    prompt: cython.longlong  # full blocks of the prompt
    before: cython.longlong
    sound: cython.bint
    reached: cython.longlong[::1] = np.array([distinct, 0], dtype=np.int64)
    gap: cython.Py_ssize_t = -1
    fork: cython.Py_ssize_t = -1
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            prompt = min(full[row], offsets[row + 1] - offsets[row])
            sound = _follow(hash_ids, offsets[row], offsets[row + 1], -1, parent, reached)
            if sound:
                before = hash_ids[offsets[row] + prompt - 1] if prompt > 0 else -1
                sound = _follow(output_ids, output_offsets[row], output_offsets[row + 1], before, parent, reached)
            if reached[1] and fork < 0:
                fork = row
            if not sound:
                gap = row
                break
    return reached[0], gap, fork


def _follow(ids, start, stop, before, parent, reached):
    """Note which id each one follows; False at a gap. `reached`: distinct ids so far, and whether there is a fork."""
    i: cython.Py_ssize_t
    block: cython.longlong
    distinct: cython.longlong = reached[0]
    for i in range(start, stop):
        block = ids[i]
        if block < 0 or block > distinct or block >= parent.shape[0]:
            reached[0] = distinct
            return False
        if block == distinct:
            distinct += 1
            parent[block] = before
        elif parent[block] != before:
            reached[1] = 1
        before = block
    reached[0] = distinct
    return True


def _depths(parent, depth):
    block: cython.Py_ssize_t
    with cython.nogil:
        for block in range(parent.shape[0]):
            depth[block] = 1 if parent[block] < 0 else depth[parent[block]] + 1


def _runs(parent, visits, chain):
    block: cython.Py_ssize_t
    chains: cython.longlong = 0
    with cython.nogil:
        for block in range(parent.shape[0]):
            if parent[block] >= 0 and visits[parent[block]] == visits[block]:
                chain[block] = chain[parent[block]]
            else:
                chain[block] = chains
                chains += 1


def _number(key, fresh, keys, numbers):
    """The number of a key; a new key gets the number `fresh`."""
    mask: cython.ulonglong = keys.shape[0] - 1
    slot: cython.ulonglong = mix_once(key) & mask
    while numbers[slot] >= 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    if numbers[slot] < 0:
        keys[slot] = key
        numbers[slot] = fresh
    return numbers[slot]


def _chain(hash_ids: cython.const[cython.longlong][::1], offsets: cython.const[cython.longlong][::1],
           full: cython.const[cython.longlong][::1], output_ids: cython.const[cython.longlong][::1],
           output_offsets: cython.const[cython.longlong][::1], distinct: cython.ulonglong,
           keys: cython.ulonglong[::1], numbers: cython.longlong[::1],
           chained: cython.longlong[::1], chained_output: cython.longlong[::1]):  # fmt: skip
    row: cython.Py_ssize_t
    prompt: cython.longlong
    before: cython.longlong
    fresh: cython.longlong = 0
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            prompt = min(full[row], offsets[row + 1] - offsets[row])
            fresh = _chain_on(hash_ids, offsets[row], offsets[row + 1], -1, distinct, fresh, keys, numbers, chained)
            before = chained[offsets[row] + prompt - 1] if prompt > 0 else -1
            fresh = _chain_on(output_ids, output_offsets[row], output_offsets[row + 1], before, distinct, fresh, keys,
                              numbers, chained_output)  # fmt: skip


def _chain_on(ids, start, stop, before, distinct, fresh, keys, numbers, chained):
    """Chain ids after the id `before`; returns the next fresh number."""
    i: cython.Py_ssize_t
    for i in range(start, stop):
        before = _number(cython.cast(cython.ulonglong, before + 1) * distinct
                         + cython.cast(cython.ulonglong, ids[i]), fresh, keys, numbers)  # fmt: skip
        fresh += before == fresh
        chained[i] = before
    return fresh


# Paths in a forest: a preorder of its blocks, and the longest beginning that a path shares with earlier paths.
#
# Sorted in preorder, paths with long common beginnings are neighbours, and what two paths share is the least that two
# neighbours between them share. So only neighbours are compared, block by block. Twin: tests/reference/tour.py.


def preorder(parent):
    """The place of each block in a walk from the roots that takes a block before its children (int32).

    Parents come before their children, -1 = root. Children are taken in the order of their numbers.

    >>> preorder(np.array([-1, 0, 0, 1, -1]))
    array([0, 1, 3, 2, 4], dtype=int32)
    """
    parent = _checked(parent)
    place, below = np.empty(len(parent), dtype=np.int32), np.ones(len(parent), dtype=np.int32)
    _preorder(parent, place, below)
    return place


def shared_with_earlier(parent, tip, depth, group):
    """The blocks that each path shares with one of the paths before it in its group (int64), from the root.

    A path ends at the block `tip`, which has `depth` blocks from the root to itself. `group` is -1 for a path that is
    compared with none, and `tip` is -1 for an empty path.

    >>> shared_with_earlier(np.array([-1, 0, 0, 1]), np.array([3, 2, 3]), np.array([3, 2, 3]), np.array([0, 0, 0]))
    array([0, 1, 3])
    """
    parent = _checked(parent)
    tip, depth, group = (np.ascontiguousarray(values, dtype=np.int64) for values in (tip, depth, group))
    if not len(tip) == len(depth) == len(group):
        raise ValueError("tip, depth and group have different lengths")
    if len(tip) and not (-1 <= tip.min() and tip.max() < len(parent)):
        raise ValueError("a tip is not a block")
    shared, compared = np.zeros(len(tip), dtype=np.int64), np.flatnonzero((tip >= 0) & (group >= 0))
    if not len(compared):
        return shared
    order = compared[np.lexsort((preorder(parent)[tip[compared]], group[compared]))]
    gap = np.zeros(len(order), dtype=np.int64)  # place -> blocks shared with the next place, -1 = another group
    _neighbours(parent, tip[order], depth[order], group[order], gap)
    place = np.argsort(order)  # of the paths in their own order
    before, after = np.arange(-1, len(order) - 1), np.arange(1, len(order) + 1)
    blocks = np.zeros(len(order), dtype=np.int64)  # place -> blocks shared with an earlier path
    _remove_latest(place, before, after, gap, blocks)
    shared[order] = blocks
    return shared


def _checked(parent):
    parent = np.ascontiguousarray(parent, dtype=np.int32)
    if len(parent) and (parent.min() < -1 or (parent >= np.arange(len(parent), dtype=np.int32)).any()):
        raise ValueError("parent: a block does not come after its parent")
    return parent


def _preorder(parent, place, below):
    block: cython.Py_ssize_t
    roots: cython.int = 0
    with cython.nogil:
        for block in range(parent.shape[0] - 1, -1, -1):  # blocks below each one, and itself
            if parent[block] >= 0:
                below[parent[block]] += below[block]
        for block in range(parent.shape[0]):  # from here on, `below` is the place of the next child
            if parent[block] >= 0:
                place[block] = below[parent[block]]
                below[parent[block]] += below[block]
            else:
                place[block] = roots
                roots += below[block]
            below[block] = place[block] + 1


def _neighbours(parent, tip, depth, group, gap):
    i: cython.Py_ssize_t
    block: cython.longlong
    other: cython.longlong
    shared: cython.longlong
    with cython.nogil:
        for i in range(tip.shape[0]):
            if i + 1 == tip.shape[0] or group[i] != group[i + 1]:
                gap[i] = -1
                continue
            block = tip[i]
            other = tip[i + 1]
            shared = depth[i]
            while block != other:  # the later block is not above the other one
                if block > other:
                    block = parent[block]
                    shared -= 1
                else:
                    other = parent[other]
            gap[i] = shared


def _remove_latest(place, before, after, gap, blocks):
    """From the last path to the first: its neighbours are earlier paths; then it leaves the list."""
    i: cython.Py_ssize_t
    at: cython.longlong
    left: cython.longlong
    right: cython.longlong
    longest: cython.longlong
    with cython.nogil:
        for i in range(place.shape[0] - 1, -1, -1):
            at = place[i]
            left = before[at]
            right = after[at]
            longest = max(gap[at], 0)
            if left >= 0:
                longest = max(longest, gap[left])
                gap[left] = min(gap[left], gap[at])
                after[left] = right
            if right < before.shape[0]:
                before[right] = left
            blocks[at] = longest


# One walk over all prompts: uses of each block, hits of a cache that never evicts, and sharing by depth.
#
# Depths are in bands whose width doubles: band b is depths 2^(b-1)+1 to 2^b, and band 0 the roots. Twin:
# tests/reference/uses.py.


BANDS = 64


def walk(hash_ids, offsets, distinct):
    """Uses of each block (int32), leading blocks of each prompt seen in earlier prompts, and counts by depth.

    The counts are an array of three rows with one value per band: distinct blocks, references, and blocks used more
    than once. Ids must form a forest, so that a block has one depth and is at most once in a prompt.

    >>> uses, hits, bands = walk(np.array([0, 1, 2, 0, 1, 3]), np.array([0, 3, 6]), 4)
    >>> uses, hits, bands[:, :3].tolist()
    (array([2, 2, 1, 1], dtype=int32), array([0, 2]), [[1, 1, 2], [2, 2, 2], [1, 1, 0]])
    """
    uses, bands = np.zeros(distinct, dtype=np.int32), np.zeros((3, BANDS), dtype=np.int64)
    return uses, walk_on(hash_ids, offsets, uses, bands), bands


def walk_on(hash_ids, offsets, uses, bands):
    """Walk the next prompts of a trace that comes in pieces; returns their hits and updates `uses` and `bands`.

    >>> uses, bands = np.array([1, 1, 1, 0], dtype=np.int32), np.zeros((3, BANDS), dtype=np.int64)
    >>> walk_on(np.array([0, 1, 3]), np.array([0, 3]), uses, bands), uses
    (array([2]), array([2, 2, 1, 1], dtype=int32))
    """
    hash_ids, offsets = _checked_rows(hash_ids, offsets, len(uses))
    hits = np.zeros(len(offsets) - 1, dtype=np.int64)
    _count_uses(hash_ids, offsets, uses, hits, bands)
    return hits


def repeated(hash_ids, offsets, uses):
    """Number of leading blocks of each prompt that are used more than once; in a forest, all such blocks are leading.

    >>> repeated(np.array([0, 1, 2, 0, 1, 3]), np.array([0, 3, 6]), np.array([2, 2, 1, 1], dtype=np.int32))
    array([2, 2])
    """
    hash_ids, offsets = _checked_rows(hash_ids, offsets, len(uses))
    blocks = np.zeros(len(offsets) - 1, dtype=np.int64)
    _repeated(hash_ids, offsets, np.ascontiguousarray(uses, dtype=np.int32), blocks)
    return blocks


def _checked_rows(hash_ids, offsets, distinct):
    hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
    if len(hash_ids) and not (0 <= hash_ids.min() and hash_ids.max() < distinct):
        raise ValueError("hash_ids: an id is negative, or not below the number of distinct ids")
    return hash_ids, offsets


def _count_uses(hash_ids, offsets, uses, hits, bands):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    band: cython.Py_ssize_t
    end: cython.Py_ssize_t  # end of the band, within the row
    block: cython.longlong
    leading: cython.bint
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            start = offsets[row]
            band = 0
            end = 1
            leading = True
            for i in range(start, offsets[row + 1]):
                if i - start == end:
                    band += 1
                    end += end
                block = hash_ids[i]
                if uses[block] == 0:
                    leading = False
                    bands[0, band] += 1
                elif leading:
                    hits[row] += 1
                if uses[block] == 1:
                    bands[2, band] += 1
                bands[1, band] += 1
                uses[block] += 1


def _repeated(hash_ids, offsets, uses, blocks):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            i = offsets[row]
            while i < offsets[row + 1] and uses[hash_ids[i]] > 1:
                i += 1
            blocks[row] = i - offsets[row]


# For each request of an agent: which earlier request, completed by its start, shares the longest prefix with it.
#
# Twin: tests/reference/recorded.py.


def longest_prefixes(order, bounds, start, end, hash_ids, offsets):
    """The request that each request continues, and whether that had completed by its start.

    `order` lists requests agent by agent, each in the order of their starts; agent g is order[bounds[g]:bounds[g + 1]].
    Of the requests of its agent that end by its start, a request continues the one that shares the most leading blocks
    with it, and of several the one that ended last. If none had ended, it is the one before it; -1 for the first.
    Ids must be numbers from 0 of a forest, so that two prompts with a common block share all blocks before it.

    >>> longest_prefixes(np.array([0, 1, 2]), np.array([0, 3]), np.array([0.0, 5.0, 9.0]), np.array([4.0, 8.0, 9.0]),
    ...                  np.array([0, 1, 2, 0, 1, 3]), np.array([0, 2, 3, 6]))
    (array([-1,  0,  0]), array([False,  True,  True]))
    """
    order = np.ascontiguousarray(order, dtype=np.int64)
    bounds = np.ascontiguousarray(bounds, dtype=np.int64)
    hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
    place = np.arange(len(order))
    group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    start, end = np.ascontiguousarray(start[order], np.float64), np.ascontiguousarray(end[order], np.float64)
    ended = np.ascontiguousarray(np.lexsort((place, end, group)))  # places, agent by agent in the order of their ends
    if len(hash_ids) and hash_ids.min() < 0:
        raise ValueError("hash_ids: an id is negative")
    holder = np.full(int(hash_ids.max(initial=-1)) + 1, -1, dtype=np.int64)  # block -> place of the last that ended
    latest = np.full(len(order), -1, dtype=np.int64)
    completed = np.zeros(len(order), dtype=np.uint8)
    _longest_prefixes(order, bounds, start, end, ended, hash_ids, offsets, holder, latest, completed)
    return np.where(latest >= 0, order[latest], -1), completed.astype(bool)


def _longest_prefixes(order, bounds, start, end, ended, hash_ids, offsets, holder, latest, completed):
    group: cython.Py_ssize_t
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    next_end: cython.Py_ssize_t
    j: cython.Py_ssize_t
    last: cython.longlong
    low: cython.longlong
    high: cython.longlong
    middle: cython.longlong
    first: cython.longlong
    with cython.nogil:
        for group in range(bounds.shape[0] - 1):
            next_end = bounds[group]
            last = -1
            for k in range(bounds[group], bounds[group + 1]):
                while next_end < bounds[group + 1] and ended[next_end] < k and end[ended[next_end]] <= start[k]:
                    j = ended[next_end]
                    for i in range(offsets[order[j]], offsets[order[j] + 1]):
                        holder[hash_ids[i]] = j
                    last = j
                    next_end += 1
                if last < 0:
                    latest[k] = k - 1 if k > bounds[group] else -1
                    continue
                first = low = offsets[order[k]]  # blocks before `low` are held, the one at `high` is not
                high = offsets[order[k] + 1]
                while low < high:
                    middle = (low + high) // 2
                    if holder[hash_ids[middle]] >= bounds[group]:
                        low = middle + 1
                    else:
                        high = middle
                latest[k] = holder[hash_ids[low - 1]] if low > first else last
                completed[k] = 1
