"""One walk over all prompts: uses of each block, hits of a cache that never evicts, and sharing by depth.

Depths are in bands whose width doubles: band b is depths 2^(b-1)+1 to 2^b, and band 0 the roots.
Twin: tests/reference/uses.py.
"""

import cython
import numpy as np

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
    hash_ids, offsets = _checked(hash_ids, offsets, len(uses))
    hits = np.zeros(len(offsets) - 1, dtype=np.int64)
    _walk(hash_ids, offsets, uses, hits, bands)
    return hits


def repeated(hash_ids, offsets, uses):
    """Number of leading blocks of each prompt that are used more than once; in a forest, all such blocks are leading.

    >>> repeated(np.array([0, 1, 2, 0, 1, 3]), np.array([0, 3, 6]), np.array([2, 2, 1, 1], dtype=np.int32))
    array([2, 2])
    """
    hash_ids, offsets = _checked(hash_ids, offsets, len(uses))
    blocks = np.zeros(len(offsets) - 1, dtype=np.int64)
    _repeated(hash_ids, offsets, np.ascontiguousarray(uses, dtype=np.int32), blocks)
    return blocks


def _checked(hash_ids, offsets, distinct):
    hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
    if len(hash_ids) and not (0 <= hash_ids.min() and hash_ids.max() < distinct):
        raise ValueError("hash_ids: an id is negative, or not below the number of distinct ids")
    return hash_ids, offsets


def _walk(hash_ids, offsets, uses, hits, bands):
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
