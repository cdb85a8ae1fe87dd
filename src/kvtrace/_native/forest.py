"""Walks over the rows of a trace: check that ids form a forest, find parents, and make ids that form one.

Each row's prompt comes first, then its output, whose blocks follow the prompt's last FULL block.
Twin: tests/reference/forest.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix_once

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
