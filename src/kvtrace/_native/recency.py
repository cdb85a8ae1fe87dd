"""Positions of blocks in a recency list: exact for all capacities, or of the most recent ones in fixed memory."""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix

# The positions of each request's blocks in one recency list: exact reuse distances for all capacities in one pass.
#
# A request's path moves to the front of the list, its root first. A later path takes a leading run of it away, so the
# list is a sequence of runs, one per request, each the deeper end of its path; ancestors are never less recent than
# their descendants. A Fenwick tree over requests counts the blocks of more recent runs, and the blocks of a run have
# consecutive ranks: one lookup per run instead of one per block.
#
# Twin: tests/reference/reuse.py.


def segments(hash_ids, offsets, distinct):
    """The hit blocks of each request, in runs with the same last use; ids must form a forest.

    Returns four arrays with one value per run: the request's row, the row of the blocks' last use, the number of
    blocks, and the rank of the first block: its position in the recency list, 1 = most recent. The others follow it.

    >>> [part.tolist() for part in segments(np.array([0, 1, 2, 0, 1]), np.array([0, 2, 3, 5]), 3)]
    [[2], [0], [2], [2]]
    """
    return RecencyList(len(offsets) - 1, distinct).runs(hash_ids, offsets)


class RecencyList:
    """The recency list of a trace of `rows` rows and `distinct` blocks, which can come in pieces.

    >>> recency = RecencyList(3, 3)
    >>> [part.tolist() for part in recency.runs(np.array([0, 1, 2]), np.array([0, 2, 3]))]
    [[], [], [], []]
    >>> [part.tolist() for part in recency.runs(np.array([0, 1]), np.array([0, 2]))]
    [[2], [0], [2], [2]]
    """

    def __init__(self, rows, distinct):
        self._rows, self._distinct = rows, distinct
        self._last_use = np.full(distinct, -1, dtype=np.int32)  # block -> row
        self._weight = np.zeros(rows + 1, dtype=np.int64)  # Fenwick tree: row -> blocks last used by it
        self._first = self._active = 0  # the first row of the next piece; number of blocks in the list

    def runs(self, hash_ids, offsets):
        """The runs of the next rows, as in `segments`. Raises ValueError if the trace has more than `rows` rows."""
        hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
        rows = len(offsets) - 1
        if len(hash_ids) and not (0 <= hash_ids.min() and hash_ids.max() < self._distinct):
            raise ValueError("hash_ids: an id is negative, or not below the number of distinct ids")
        if self._first + rows > self._rows:
            raise ValueError(f"the trace has more than {self._rows:,} rows")
        longest = int(np.diff(offsets).max()) if rows else 0
        runs = np.empty((4, max(2 * rows, longest, 1)), dtype=np.int64)
        row, count = 0, 0
        while True:
            row, self._active, count = _segments(
                hash_ids, offsets, row, self._first, self._active, count, self._last_use, self._weight, runs
            )
            if row == rows:
                self._first += rows
                return tuple(runs[:, :count])
            grown = np.empty((4, 2 * runs.shape[1]), dtype=np.int64)
            grown[:, :count] = runs[:, :count]
            runs = grown


def _segments(hash_ids, offsets, row, first, active, count, last_use, weight, runs):
    """Walk rows to the end, or until `runs` may be too small; returns (row, active blocks, count).

    The first row is row `first` of the trace.
    """
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    run: cython.int
    taken: cython.longlong
    before: cython.longlong
    trace_row: cython.int  # the row's number in the trace
    rows: cython.Py_ssize_t = offsets.shape[0] - 1
    all_rows: cython.Py_ssize_t = weight.shape[0] - 1  # rows of the trace
    with cython.nogil:
        while row < rows:
            trace_row = cython.cast(cython.int, first + row)
            start = offsets[row]
            stop = offsets[row + 1]
            if count + (stop - start) > runs.shape[1]:
                break
            i = start
            taken = 0
            while i < stop and last_use[hash_ids[i]] >= 0:
                run = last_use[hash_ids[i]]
                begin = i
                while i < stop and last_use[hash_ids[i]] == run:
                    last_use[hash_ids[i]] = trace_row
                    i += 1
                before = active + taken  # number of more recent blocks, in the list as it was before this request
                k = run + 1
                while k > 0:
                    before -= weight[k]
                    k -= k & -k
                runs[0, count] = trace_row
                runs[1, count] = run
                runs[2, count] = i - begin
                runs[3, count] = before + 1  # a path takes a run from its first block on
                count += 1
                taken += i - begin
                active -= i - begin
                k = run + 1
                while k <= all_rows:
                    weight[k] -= i - begin
                    k += k & -k
            while i < stop:
                last_use[hash_ids[i]] = trace_row
                i += 1
            active += stop - start
            k = trace_row + 1
            while k <= all_rows:
                weight[k] += stop - start
                k += k & -k
            row += 1
    return row, active, count


# The recency list of a stream of requests in fixed memory: exact ranks of the most recently used blocks.
#
# The algorithm is that of `RecencyList`: the list is a sequence of runs, one per request, and a Fenwick tree over
# requests counts the blocks of more recent runs. A stream has no end, so three things differ:
#
# * A block is a 64-bit key in an open-addressing table. Keys are halves of keyed 128-bit digests. A new block has the
#   key of another one in the list with a chance of (blocks in the list) / 2^64: 10^-13 at a million.
# * If the table is full, the runs of the least recent requests are dropped. What is left is the front of the whole
#   list, so all ranks in it are exact, and a block that is not in it has a rank beyond `held`. One pass over the table
#   drops a fifth of the blocks, so it costs a few steps for each new block.
# * Requests have slots in the Fenwick tree. The same pass numbers the slots in use again.
#
# Twin: tests/reference/live_recency.py.


MAX_LOAD = 0.7  # of the table
MARKS = 64  # moments that a list can remember


class LiveRecency:
    """The most recently used blocks of a stream, at least `capacity` of them unless a single request has more.

    If `sample` is above 0, `sampled` counts the blocks of the list that are in that sample (see `sampled_positions`).

    >>> recency = LiveRecency(4)
    >>> keys, offsets = np.array([7, 8, 9, 7, 8], np.uint64), np.array([0, 2, 3, 5])
    >>> runs, rows = recency.runs(keys, offsets)
    >>> runs.tolist()  # row 2 has two blocks of one earlier request, at ranks 2 and 3; the first has depth 0
    [[2], [2], [2], [0]]
    >>> rows.tolist()  # leading known blocks; blocks in the list before the row; of them in the sample
    [[0, 0, 2], [0, 2, 3], [0, 0, 0]]
    """

    def __init__(self, capacity, *, slots=None, sample=0.0, seed=0):
        if capacity < 1 or not 0 <= sample <= 1:
            raise ValueError("capacity is below 1, or sample is not a share")
        self.capacity, self.room = capacity, capacity + max(capacity // 4, 1)
        self.reach = self.room
        size = 1 << max(4, (int(self.room / MAX_LOAD)).bit_length())
        self._slots = max(capacity, 1024) if slots is None else slots
        if self._slots < 2 or self.room >= 1 << 30:
            raise ValueError("slots is below 2, or capacity is too large")
        self._mask = size - 1
        self._keys = np.empty(size, dtype=np.uint64)
        self._last = np.zeros(size, dtype=np.int32)
        self._tree = np.zeros(self._slots + 1, dtype=np.int32)
        self._marks, self._whole = np.zeros(MARKS, dtype=np.int32), np.ones(MARKS, dtype=np.int8)
        self._samples, self._seed = sample > 0, seed
        self._threshold = threshold_of(sample) if sample > 0 else 0
        self.held = self.sampled = self._used = 0
        self.dropped = False

    @property
    def memory_bytes(self):
        """The bytes of its arrays."""
        return self._keys.nbytes + self._last.nbytes + self._tree.nbytes

    def runs(self, keys, offsets):
        """The hit blocks of the next requests, as runs with one last use, and three numbers for each request.

        Returns:
            runs: (4, run) int64: the request's row, the number of blocks, the rank of the first one in the list as it
                was before the request (1 = most recent; the others follow it), and its index in the prompt.
            rows: (3, row) int64: leading blocks that were in the list; blocks in the list before the request, so that
                any other block has a larger rank; how many of these are in the sample.
        """
        keys, offsets = np.asarray(keys, np.uint64), np.ascontiguousarray(offsets, np.int64)
        count = len(offsets) - 1
        if count < 0 or offsets[0] != 0 or offsets.item(-1) != len(keys) or (np.diff(offsets) < 0).any():
            raise ValueError("keys and offsets have inconsistent sizes")
        longest = int(np.diff(offsets).max()) if count else 0
        runs, rows = np.empty((4, max(2 * count, longest, 1)), dtype=np.int64), np.empty((3, count), dtype=np.int64)
        row: cython.Py_ssize_t = 0
        keys_view: cython.const[cython.ulonglong][:] = keys
        offsets_view: cython.const[cython.longlong][::1] = offsets
        rows_view: cython.longlong[:, ::1] = rows
        runs_view: cython.longlong[:, ::1]
        self._count = 0
        while True:
            runs_view = runs
            with cython.nogil:
                row = self._walk(keys_view, offsets_view, row, rows_view, runs_view)
            if row == count:
                return runs[:, : self._count], rows
            grown = np.empty((4, 2 * runs.shape[1]), dtype=np.int64)
            grown[:, : self._count] = runs[:, : self._count]
            runs = grown

    def mark(self, number):
        """Remember this moment under a number below 64, for `used_since`."""
        index: cython.Py_ssize_t = number
        if not 0 <= index < MARKS:
            raise IndexError("marks are numbered from 0 to 63")
        self._marks[index], self._whole[index] = self._used, True

    def used_since(self, number):
        """(blocks of the list used since this mark was set, whether these are all blocks used since).

        >>> recency = LiveRecency(4)
        >>> recency.mark(0)
        >>> runs, rows = recency.runs(np.array([7, 8], np.uint64), np.array([0, 2]))
        >>> recency.used_since(0)
        (2, True)
        """
        index: cython.Py_ssize_t = number
        if not 0 <= index < MARKS:
            raise IndexError("marks are numbered from 0 to 63")
        return self.held - self._up_to(self._marks[index]), bool(self._whole[index])

    def _walk(self, keys, offsets, row, rows, runs):
        """Take requests until the end, or until `runs` may be too small; returns the next row."""
        i: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        place: cython.Py_ssize_t
        taken: cython.Py_ssize_t
        before: cython.Py_ssize_t
        run: cython.int
        slot: cython.int
        last: cython.p_int = cython.address(self._last[0])
        while row < offsets.shape[0] - 1:
            start = offsets[row]
            stop = offsets[row + 1]
            if self._count + (stop - start) > runs.shape[1]:
                break
            rows[0, row] = 0
            if stop - start > self.capacity:
                stop = start + self.capacity  # the deeper blocks are beyond the end of the list
            if self._used == self._slots:
                self._make_room(0)
            rows[1, row] = self.held
            rows[2, row] = self.sampled
            if stop == start:
                row += 1
                continue
            self._used += 1
            slot = self._used
            taken = 0
            i = start
            place = self._place(keys[i])
            while i < stop and last[place] != 0 and last[place] != slot:
                run = last[place]
                begin = i
                while i < stop and last[place] == run:
                    last[place] = slot
                    i += 1
                    if i < stop:
                        place = self._place(keys[i])
                before = self.held + taken - self._up_to(run)  # more recent blocks, in the list before this request
                runs[0, self._count] = row
                runs[1, self._count] = i - begin
                runs[2, self._count] = before + 1  # a path takes a run from its first block on
                runs[3, self._count] = begin - start
                self._count += 1
                taken += i - begin
                self.held -= i - begin
                self._add(run, cython.cast(cython.int, begin - i))
            rows[0, row] = i - start
            self.held += taken
            self._add(slot, cython.cast(cython.int, taken))
            if self.held + (stop - i) > self.room:
                self._make_room(stop - i)
                if taken == 0:  # the slot had no blocks yet
                    self._used += 1
                slot = self._used
            taken = 0
            while i < stop:
                place = self._place(keys[i])
                if last[place] == 0:
                    self._keys[place] = keys[i]
                    if self._samples and _in_sample(keys[i], self._seed, self._threshold):
                        self.sampled += 1
                    taken += 1
                elif last[place] != slot:  # its parent was not in the list: the keys are not those of a forest
                    self._add(last[place], -1)
                    self.held -= 1
                    taken += 1
                last[place] = slot
                i += 1
            self.held += taken
            self._add(slot, cython.cast(cython.int, taken))
            if stop != offsets[row + 1]:
                self._drop_before(slot)  # other blocks come after the deeper ones of this request
                self._whole[:] = False
                self.dropped = True
                if self.held < self.reach:
                    self.reach = self.held
            row += 1
        return row

    def _place(self, key):
        """The place of a key in the table, or the free place for it."""
        place: cython.ulonglong = key & self._mask
        while self._last[place] != 0 and self._keys[place] != key:
            place = (place + 1) & self._mask
        return cython.cast(cython.Py_ssize_t, place)

    def _add(self, slot, blocks):
        """Add blocks to a slot of the Fenwick tree."""
        while slot <= self._slots:
            self._tree[slot] += blocks
            slot += slot & -slot

    def _up_to(self, slot):
        """The blocks of all slots up to this one."""
        blocks: cython.Py_ssize_t = 0
        while slot > 0:
            blocks += self._tree[slot]
            slot -= slot & -slot
        return blocks

    def _oldest(self, blocks):
        """The last slot that has at most `blocks` blocks up to it."""
        slot: cython.int = 0
        step: cython.int = 1
        while step <= self._slots // 2:
            step *= 2
        while step > 0:
            if slot + step <= self._slots and self._tree[slot + step] <= blocks:
                slot += step
                blocks -= self._tree[slot]
            step //= 2
        return slot

    def _make_room(self, needed):
        """Drop the least recent requests until `needed` more blocks and one more slot fit."""
        oldest: cython.int = 0
        if self.held + needed > self.room:
            oldest = self._oldest(self.held - self.capacity) if self.held > self.capacity else 0
            while self.held - self._up_to(oldest) + needed > self.room:  # a request with very many blocks
                oldest += 1
        self._drop_before(oldest + 1)

    def _drop_before(self, floor):
        """Drop the requests of slots below `floor`, more if most slots are in use, and number the others again."""
        place: cython.Py_ssize_t
        size: cython.Py_ssize_t = self._last.shape[0]
        slot: cython.int
        count: cython.int = 0
        number: cython.int
        for slot in range(self._slots + 1):
            self._tree[slot] = 0
        for place in range(size):
            if self._last[place] >= floor and self._last[place] != 0:
                self._tree[self._last[place]] = 1
        slot = self._used
        while slot >= floor:  # at most half of the slots stay in use
            if self._tree[slot] != 0:
                if count == self._slots // 2:
                    floor = slot + 1
                    break
                count += 1
            slot -= 1
        count = 0
        for slot in range(floor, self._used + 1):  # slot -> new number
            if self._tree[slot] != 0:
                count += 1
            self._tree[slot] = count
        for number in range(self._marks.shape[0]):
            if self._marks[number] + 1 < floor:
                self._whole[number] = False
                self._marks[number] = 0
            elif self._marks[number] >= floor:
                self._marks[number] = self._tree[self._marks[number]]
            else:
                self._marks[number] = 0
        self._remove_before(floor)
        for place in range(size):
            if self._last[place] != 0:
                self._last[place] = self._tree[self._last[place]]
        for slot in range(self._slots + 1):
            self._tree[slot] = 0
        for place in range(size):
            if self._last[place] != 0:
                self._tree[self._last[place]] += 1
        for slot in range(1, self._slots + 1):
            number = slot + (slot & -slot)
            if number <= self._slots:
                self._tree[number] += self._tree[slot]
        self._used = count

    def _remove_before(self, floor):
        """Remove the keys of slots below `floor`; later keys of a probe sequence move up (Knuth 6.4, algorithm R)."""
        place: cython.Py_ssize_t = 0
        hole: cython.ulonglong
        other: cython.ulonglong
        home: cython.ulonglong
        removed: cython.Py_ssize_t = 0
        while place < self._last.shape[0]:
            if self._last[place] == 0 or self._last[place] >= floor:
                place += 1
                continue
            removed += 1
            if self._samples and _in_sample(self._keys[place], self._seed, self._threshold):
                self.sampled -= 1
            hole = cython.cast(cython.ulonglong, place)
            other = (hole + 1) & self._mask
            while self._last[other] != 0:
                home = self._keys[other] & self._mask
                if ((other - home) & self._mask) >= ((other - hole) & self._mask):
                    self._keys[hole] = self._keys[other]
                    self._last[hole] = self._last[other]
                    hole = other
                other = (other + 1) & self._mask
            self._last[hole] = 0
        if removed > 0:
            self.held -= removed
            self.dropped = True
            if self.held < self.reach:
                self.reach = self.held


def threshold_of(sample):
    """The largest mixed key in a sample of this share of all keys.

    >>> threshold_of(0.5) == 2**63 - 1
    True
    """
    return max(round(sample * 2**64), 1) - 1


def sampled_positions(keys, sample, seed=0):
    """The positions of the keys that are in a sample: those whose mixed bits are below a threshold.

    >>> len(sampled_positions(np.arange(1000, dtype=np.uint64), 0.5)) in range(450, 550)
    True
    >>> sampled_positions(np.arange(3, dtype=np.uint64), 1.0)
    array([0, 1, 2])
    """
    keys = np.asarray(keys, np.uint64)
    positions = np.empty(len(keys), dtype=np.int64)  # the system allocates pages when they are written
    return positions[: _sample(keys, seed, threshold_of(sample), positions)].copy()


def _in_sample(key, seed, threshold):
    return mix(key ^ seed) <= threshold


def _sample(keys, seed, threshold, positions):
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    for i in range(keys.shape[0]):
        if _in_sample(keys[i], seed, threshold):
            positions[count] = i
            count += 1
    return count


# Sums of hits over bins of ranks, of runs in a recency list: hit blocks, hit tokens and shares of requests.
#
# Bin i has the hits with ranks above `edges[i - 1]`, up to `edges[i]`. So the sum of the bins up to i has the hits of
# an LRU cache of `edges[i]` blocks. Sums have columns (a slice of time, all time), and a batch goes into some of them
# with a weight for each.
#
# Twin: tests/reference/rank_sums.py.


def add_runs(sums, edges, into, weights, runs, blocks, tokens, block_size):
    """Add runs of `LiveRecency.runs` to the sums.

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
        _add_sample(
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


def _add_sample(into, runs, skipped, offsets, depth, anchors, blocks, tokens, block_size, step, hits):
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
