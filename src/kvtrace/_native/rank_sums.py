"""Sums of hits over bins of ranks, of runs in a recency list: hit blocks, hit tokens and shares of requests.

Bin i has the hits with ranks above `edges[i - 1]`, up to `edges[i]`. So the sum of the bins up to i has the hits of an
LRU cache of `edges[i]` blocks. Sums have columns (a slice of time, all time), and a batch goes into some of them with
a weight for each.

Twin: tests/reference/rank_sums.py.
"""

import cython
import numpy as np


def add_runs(sums, edges, into, weights, runs, blocks, tokens, block_size):
    """Add runs of `LiveRecency.found` to the sums.

    Args:
        sums: (column, 3, bin) float64, changed in place.
        edges: bin -> its largest rank, int64, rising; the last one is at least the largest rank.
        into: columns, int64.
        weights: of the batch in each of these columns, float64.
        runs: (4, run) int64: row, blocks, rank of the first one, its index in the prompt.
        blocks, tokens: row -> blocks and tokens of its prompt, int64; these blocks cover at most these tokens.
        block_size: tokens.

    >>> sums = np.zeros((1, 3, 3))
    >>> run = np.array([[0], [3], [2], [0]])  # blocks at ranks 2, 3 and 4
    >>> add_runs(sums, np.array([1, 3, 9]), np.array([0]), np.array([1.0]), run, np.array([4]), np.array([7]), 2)
    >>> sums[0].tolist()
    [[0.0, 2.0, 1.0], [0.0, 4.0, 2.0], [0.0, 0.5, 0.25]]
    """
    target: Sums
    _fill(cython.address(target), sums, edges, into, weights)
    runs_view: cython.const[cython.longlong][:, :] = runs
    blocks_view: cython.const[cython.longlong][::1] = blocks
    tokens_view: cython.const[cython.longlong][::1] = tokens
    size: cython.longlong = block_size
    with cython.nogil:
        _runs(cython.address(target), runs_view, blocks_view, tokens_view, size)


def add_sample(sums, edges, into, weights, runs, skipped, offsets, depth, anchors, blocks, tokens, block_size, step):
    """Add runs in the list of a sample of the blocks, each of which stands for `step` blocks with following ranks.

    A block at rank k of the sample is the (k - s)-th sampled block after the first `a` blocks of the whole list, of
    which s are sampled. So it stands for the ranks above a + (k - s - 1) x step, up to a + (k - s) x step.

    Args:
        sums, edges, into, weights, blocks, tokens, block_size: as in `add_runs`.
        runs: of the sampled blocks; the index is that among the sampled blocks of the prompt.
        skipped: row -> so many leading sampled blocks are left out, int64.
        offsets: row -> its first sampled block, int64, with one more at the end.
        depth: sampled block -> its index in the prompt, int64.
        anchors: (2, row) int64: a and s of each row.
        step: 1 / share of the sample.

    Returns:
        (2, row) float64: the hit blocks and hit tokens of each row that were added, each block counted `step` times.
    """
    target: Sums
    _fill(cython.address(target), sums, edges, into, weights)
    hits = np.zeros((2, len(blocks)))
    runs_view: cython.const[cython.longlong][:, :] = runs
    skipped_view: cython.const[cython.longlong][::1] = skipped
    offsets_view: cython.const[cython.longlong][::1] = offsets
    depth_view: cython.const[cython.longlong][::1] = depth
    anchors_view: cython.const[cython.longlong][:, :] = anchors
    blocks_view: cython.const[cython.longlong][::1] = blocks
    tokens_view: cython.const[cython.longlong][::1] = tokens
    hits_view: cython.double[:, ::1] = hits
    size: cython.longlong = block_size
    width: cython.double = step
    with cython.nogil:
        _sample(
            cython.address(target), runs_view, skipped_view, offsets_view, depth_view, anchors_view, blocks_view,
            tokens_view, size, width, hits_view,
        )  # fmt: skip
    return hits


def _fill(target, sums, edges, into, weights):
    sums_view: cython.double[:, :, ::1] = sums
    edges_view: cython.const[cython.longlong][::1] = edges
    into_view: cython.const[cython.longlong][::1] = into
    weights_view: cython.const[cython.double][::1] = weights
    if sums.shape[1:] != (3, len(edges)) or len(into) != len(weights) or not len(into) or not len(edges):
        raise ValueError("sums, edges, into and weights have inconsistent sizes")
    if min(into) < 0 or max(into) >= len(sums):
        raise ValueError("a column is not one of the sums")
    target.sums = cython.address(sums_view[0, 0, 0])
    target.bins = edges_view.shape[0]
    target.edges = cython.address(edges_view[0])
    target.into = cython.address(into_view[0])
    target.weights = cython.address(weights_view[0])
    target.columns = into_view.shape[0]


def _runs(into, runs, blocks, tokens, block_size):
    run: cython.Py_ssize_t
    row: cython.Py_ssize_t
    place: cython.Py_ssize_t
    rank: cython.longlong
    last: cython.longlong
    depth: cython.longlong
    piece: cython.longlong
    for run in range(runs.shape[1]):
        row = runs[0, run]
        rank = runs[2, run]
        last = rank + runs[1, run] - 1
        depth = runs[3, run]
        place = _bin_of(into, rank)
        while rank <= last:
            piece = last - rank + 1
            if place < into.bins - 1 and into.edges[place] < last:
                piece = into.edges[place] - rank + 1
            _add(into, place, piece, _tokens_of(depth, depth + piece, block_size, tokens[row]),
                 cython.cast(cython.double, piece) / blocks[row])  # fmt: skip
            rank += piece
            depth += piece
            place += 1


def _sample(into, runs, skipped, offsets, depth, anchors, blocks, tokens, block_size, step, hits):
    run: cython.Py_ssize_t
    row: cython.Py_ssize_t
    place: cython.Py_ssize_t
    i: cython.Py_ssize_t
    first: cython.longlong
    block_tokens: cython.double
    low: cython.double  # ranks above this one
    high: cython.double  # ... up to this one
    end: cython.double
    count: cython.double
    for run in range(runs.shape[1]):
        row = runs[0, run]
        first = skipped[row] - runs[3, run]
        if first < 0:
            first = 0
        for i in range(first, runs[1, run]):
            at: cython.longlong = depth[offsets[row] + runs[3, run] + i]
            block_tokens = _tokens_of(at, at + 1, block_size, tokens[row])
            low = anchors[0, row] + step * (runs[2, run] + i - 1 - anchors[1, row])
            if low < anchors[0, row]:
                low = anchors[0, row]
            high = low + step
            hits[0, row] += step
            hits[1, row] += step * block_tokens
            place = _bin_of(into, low)
            while low < high:
                end = high
                if place < into.bins - 1 and into.edges[place] < high:
                    end = cython.cast(cython.double, into.edges[place])
                if end > low:
                    count = end - low
                    _add(into, place, count, count * block_tokens, count / blocks[row])
                    low = end
                place += 1


def _bin_of(into, rank):
    """The first bin whose edge is not below a rank; the last one if there is none."""
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = into.bins - 1
    middle: cython.Py_ssize_t
    while low < high:
        middle = (low + high) // 2
        if into.edges[middle] >= rank:
            high = middle
        else:
            low = middle + 1
    return low


def _add(into, bin, blocks, tokens, shares):
    i: cython.Py_ssize_t
    weight: cython.double
    sums: cython.p_double
    for i in range(into.columns):
        weight = into.weights[i]
        sums = into.sums + into.into[i] * 3 * into.bins + bin
        sums[0] += weight * blocks
        sums[into.bins] += weight * tokens
        sums[2 * into.bins] += weight * shares


def _tokens_of(first, stop, block_size, tokens):
    """The prompt tokens in blocks first to stop."""
    low: cython.longlong = first * block_size
    high: cython.longlong = stop * block_size
    return (high if high < tokens else tokens) - (low if low < tokens else tokens)
