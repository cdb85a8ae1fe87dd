"""Blocks of rows as int32 numbers: contributors, splits in place, first rows, hits, conversations.

Twin: tests/reference/sharing.py.
"""

import cython
import numpy as np

UNKNOWN = -1
SEVERAL = 3  # a block shared by at least this many conversations identifies none of them


def count_contributors(blocks, offsets, contributor, distinct):
    """Number of different contributors of each block (int32).

    `blocks` holds the blocks of all rows end to end, row r from offsets[r] to offsets[r + 1]. `contributor` is each
    row's contributor, from 0.

    >>> count_contributors(np.array([0, 1, 0, 2, 0, 1]), np.array([0, 2, 4, 6]), np.array([0, 1, 0]), 3)
    array([2, 1, 1], dtype=int32)
    """
    blocks, offsets = _checked(blocks, offsets, distinct)
    contributor, order = _by_contributor(contributor, len(offsets) - 1)
    count, last = np.zeros(distinct, dtype=np.int32), np.full(distinct, UNKNOWN, dtype=np.int32)
    _count(blocks, offsets, order, contributor, count, last)
    return count


def split(blocks, offsets, contributor, count, is_split):
    """Split blocks in place: the first contributor of a split block keeps its number, each other one gets a new number.

    `count` is that of `count_contributors`. New numbers go on from the last block; returns the block that each of
    them was (int32).

    >>> blocks = np.array([0, 1, 0, 1], dtype=np.int32)
    >>> split(blocks, np.array([0, 2, 4]), np.array([0, 1]), np.array([2, 2]), np.array([False, True])), blocks
    (array([1], dtype=int32), array([0, 1, 0, 2], dtype=int32))
    """
    distinct = len(count)
    checked, offsets = _checked(blocks, offsets, distinct)
    if checked is not blocks:
        raise ValueError("the blocks are not an int32 array, which could be changed in place")
    contributor, order = _by_contributor(contributor, len(offsets) - 1)
    copy, last = (np.full(distinct, UNKNOWN, dtype=np.int32) for _ in range(2))
    former = np.empty(int(np.maximum(count[is_split] - 1, 0).sum()), dtype=np.int32)
    _split(blocks, offsets, order, contributor, np.ascontiguousarray(is_split).view(np.uint8), copy, last, former)
    return former


def runs(blocks, offsets, is_alone, distinct):
    """Join consecutive blocks that the same rows have: (runs of the rows, their offsets, blocks of each run), int32.

    The blocks must form a forest: each one always follows the same block. Runs are numbered by first appearance. The
    last block of a row marked by `is_alone` is a run of its own.

    >>> runs(np.array([0, 1, 2, 0, 1, 3]), np.array([0, 3, 6]), np.array([False, True]), 4)
    (array([0, 1, 0, 2], dtype=int32), array([0, 2, 4]), array([2, 1, 1], dtype=int32))
    """
    blocks, offsets = _checked(blocks, offsets, distinct, np.int32 if blocks.dtype == np.int32 else np.int64)
    uses, alone = np.zeros(distinct, dtype=np.int32), np.zeros(distinct, dtype=np.uint8)
    if blocks.dtype == np.int32:
        _count_uses[cython.int](blocks, uses)
    else:
        _count_uses[cython.longlong](blocks, uses)
    alone[blocks[offsets[1:][is_alone & (np.diff(offsets) > 0)] - 1]] = 1
    run_at = np.full(distinct, UNKNOWN, dtype=np.int32)  # block -> the run that begins with it
    number, length = np.empty(len(blocks), np.int32), np.empty(distinct, np.int32)  # unused room takes no memory
    run_offsets = np.zeros(len(offsets), dtype=np.int64)
    tables = uses, alone, run_at, number, length, run_offsets
    if blocks.dtype == np.int32:
        count = _runs[cython.int](blocks, offsets, *tables)
    else:
        count = _runs[cython.longlong](blocks, offsets, *tables)
    return number[: run_offsets.item(-1)].copy(), run_offsets, length[:count].copy()


def unsettled(blocks, offsets, count, k):
    """The place in each row from which splits may follow, once blocks of 2 to k - 1 conversations are split (int64).

    It is the row's number of blocks if no split may follow. `count` is that of `count_contributors` for conversations
    as `infer` gives them, without outputs. The blocks must form a forest.

    The conversations among the rows of a block depend on these rows' blocks from there on, and on nothing else. So a
    block keeps its conversations if no block below it is split; and it is never split if such a block, which has k of
    them, is below it.

    >>> unsettled(np.array([0, 1, 0, 1, 0, 2, 0, 2, 0, 2]), np.array([0, 2, 4, 6, 8, 10]), np.array([5, 2, 3]), 3)
    array([1, 1, 2, 2, 2])
    """
    count = np.ascontiguousarray(count, dtype=np.int32)
    blocks, offsets = _checked(blocks, offsets, len(count))
    changes, is_safe = (np.zeros(len(count), dtype=np.uint8) for _ in range(2))
    starts = np.empty(len(offsets) - 1, dtype=np.int64)
    _unsettled(blocks, offsets, count, k, changes, is_safe, starts)
    return starts


def first_rows(blocks, offsets, lengths, distinct):
    """The first row that has each block among its first `lengths` ones (int32), -1 = none.

    >>> first_rows(np.array([0, 1, 0, 2], dtype=np.int32), np.array([0, 2, 4]), np.array([2, 1]), 3)
    array([ 0,  0, -1], dtype=int32)
    """
    blocks, offsets = _checked(blocks, offsets, distinct)
    row = np.full(distinct, UNKNOWN, dtype=np.int32)
    _first_rows(blocks, offsets, _lengths(lengths, offsets), row)
    return row


def leading_hits(blocks, offsets, prompts, unseen, outputs=False):
    """Leading blocks of each prompt that an earlier prompt has (int32), in a cache that never evicts.

    `prompts` counts the blocks of each prompt; the others of a row are its output's. With `outputs`, blocks of earlier
    outputs hit, too. `unseen` marks the blocks that no prompt before these rows has (bool), and is updated for the
    next rows.

    >>> leading_hits(np.array([0, 1, 0, 2]), np.array([0, 2, 4]), np.array([2, 2]), np.ones(3, bool))
    array([0, 1], dtype=int32)
    """
    blocks, offsets = _checked(blocks, offsets, len(unseen))
    hits = np.empty(len(offsets) - 1, dtype=np.int32)
    _leading_hits(blocks, offsets, _lengths(prompts, offsets), unseen.view(np.uint8), bool(outputs), hits)
    return hits


def infer(blocks, offsets, prompts, tails, distinct, enough=None):
    """The conversation of each request, from 0 (int64), inferred from the requests before it.

    Take the last request that used the deepest block of this request's shared prefix. This request continues its
    conversation if the shared prefix is all of that request's path (with `tails`: all except a last, perhaps partial,
    block) and fewer than three conversations have used the block. `prompts` counts the blocks of each prompt; the
    others of a row are its output's. `enough` counts the leading blocks of each path that must be shared, if `tails`
    does not say it.

    >>> infer(np.array([0, 1, 0, 1, 2, 0, 3]), np.array([0, 2, 5, 7]), np.array([2, 3, 2]), False, 4)
    array([0, 0, 1])
    """
    return Inference(len(offsets) - 1, tails, distinct).go_on(blocks, offsets, 0, prompts, enough).astype(np.int64)


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
        self._enough = np.empty(rows, dtype=np.int32)  # request -> leading blocks that continue its conversation
        self._last = np.full(distinct, UNKNOWN, dtype=np.int32)  # block -> the last row that used it
        self._users = np.full((distinct, SEVERAL - 1), UNKNOWN, dtype=np.int32)  # block -> its first conversations
        self._several = np.zeros(distinct, dtype=np.uint8)  # block -> whether there are more
        self._tails, self._fresh = bool(tails), 0

    def go_on(self, blocks, offsets, row, prompts=None, enough=None):
        """The conversations of the next requests; the first of them is `row`."""
        blocks, offsets = _checked(blocks, offsets, len(self._last))
        prompts = np.diff(offsets) if prompts is None else np.ascontiguousarray(prompts, dtype=np.int64)
        stop = row + len(offsets) - 1
        if not 0 <= row <= stop <= len(self.session):
            raise ValueError("the rows are outside the trace")
        self._enough[row:stop] = prompts - self._tails if enough is None else enough
        self._fresh = _infer(blocks, offsets, prompts, row, self._fresh, self._enough, self._last,
                             self._users, self._several, self.session)  # fmt: skip
        return self.session[row:stop]


def _by_contributor(contributor, rows):
    contributor = np.ascontiguousarray(contributor, dtype=np.int32)
    if len(contributor) != rows:
        raise ValueError("contributor: one value a row is needed")
    if len(contributor) and contributor.min() < 0:
        raise ValueError("contributor: a value is negative")
    return contributor, _rows_by_contributor(contributor)


def _rows_by_contributor(contributor):
    """The rows in order of their contributors, those of one in their own order."""
    largest = int(contributor.max(initial=-1))
    if largest > 4 * len(contributor):
        return np.argsort(contributor, kind="stable")
    order, starts = np.empty(len(contributor), np.int64), np.zeros(largest + 2, np.int64)
    _place_rows(contributor, starts, order)
    return order


def _lengths(prompts, offsets):
    prompts = np.ascontiguousarray(prompts, dtype=np.int64)
    if len(prompts) != len(offsets) - 1 or (prompts > np.diff(offsets)).any():
        raise ValueError("a prompt has more blocks than its row")
    return prompts


def _checked(blocks, offsets, distinct, dtype=np.int32):
    blocks, offsets = np.ascontiguousarray(blocks, dtype=dtype), np.ascontiguousarray(offsets, dtype=np.int64)
    if not len(offsets) or offsets[0] != 0 or offsets.item(-1) != len(blocks) or (np.diff(offsets) < 0).any():
        raise ValueError("the offsets do not match the rows or the ids")
    if len(blocks) and not (0 <= blocks.min() and blocks.max() < distinct):
        raise ValueError("an id is negative, or not below the number of distinct ids")
    return blocks, offsets


def _place_rows(contributor, starts, order):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for row in range(contributor.shape[0]):
            starts[contributor[row] + 1] += 1
        for i in range(1, starts.shape[0]):
            starts[i] += starts[i - 1]
        for row in range(contributor.shape[0]):
            order[starts[contributor[row]]] = row
            starts[contributor[row]] += 1


def _count_uses(blocks, uses):
    i: cython.Py_ssize_t
    with cython.nogil:
        for i in range(blocks.shape[0]):
            uses[blocks[i]] += 1


def _runs(blocks, offsets, uses, alone, run_at, run, length, run_offsets):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    runs: cython.int = 0
    block: cython.longlong
    before: cython.longlong
    is_new: cython.bint
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            before = -1
            is_new = False
            for i in range(offsets[row], offsets[row + 1]):
                block = blocks[i]
                if before < 0 or uses[block] != uses[before] or alone[block] or alone[before]:
                    is_new = run_at[block] < 0
                    if is_new:
                        run_at[block] = runs
                        length[runs] = 0
                        runs += 1
                    run[at] = run_at[block]
                    at += 1
                length[runs - 1] += is_new
                before = block
            run_offsets[row + 1] = at
    return runs


def _count(blocks, offsets, order, contributor, count, last):
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    row: cython.longlong
    with cython.nogil:
        for r in range(order.shape[0]):  # in order of contributors
            row = order[r]
            for i in range(offsets[row], offsets[row + 1]):
                if last[blocks[i]] != contributor[row]:
                    last[blocks[i]] = contributor[row]
                    count[blocks[i]] += 1


def _split(blocks, offsets, order, contributor, is_split, copy, last, former):
    r: cython.Py_ssize_t
    i: cython.Py_ssize_t
    row: cython.longlong
    block: cython.int
    fresh: cython.int = 0
    distinct: cython.int = cython.cast(cython.int, copy.shape[0])
    with cython.nogil:
        for r in range(order.shape[0]):  # in order of contributors
            row = order[r]
            for i in range(offsets[row], offsets[row + 1]):
                block = blocks[i]
                if not is_split[block]:
                    continue
                if last[block] != contributor[row]:
                    last[block] = contributor[row]
                    if copy[block] < 0:
                        copy[block] = block
                    else:
                        former[fresh] = block
                        copy[block] = distinct + fresh
                        fresh += 1
                blocks[i] = copy[block]


def _unsettled(blocks, offsets, count, k, changes, is_safe, starts):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    last: cython.Py_ssize_t
    with cython.nogil:
        for row in range(starts.shape[0]):  # a split changes its block and those above
            last = -1
            for i in range(offsets[row], offsets[row + 1]):
                if 1 < count[blocks[i]] < k:
                    last = i
            for i in range(offsets[row], last + 1):
                changes[blocks[i]] = 1
        for row in range(starts.shape[0]):  # a block that keeps k conversations protects itself and those above
            last = offsets[row]
            while last < offsets[row + 1] and changes[blocks[last]]:
                last += 1
            if last < offsets[row + 1] and count[blocks[last]] >= k:
                for i in range(offsets[row], last + 1):
                    is_safe[blocks[i]] = 1
        for row in range(starts.shape[0]):
            i = offsets[row]
            while i < offsets[row + 1] and is_safe[blocks[i]]:
                i += 1
            if i < offsets[row + 1] and not changes[blocks[i]]:
                i = offsets[row + 1]
            starts[row] = i - offsets[row]


def _first_rows(blocks, offsets, lengths, first):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for row in range(lengths.shape[0]):
            for i in range(offsets[row], offsets[row] + lengths[row]):
                if first[blocks[i]] < 0:
                    first[blocks[i]] = cython.cast(cython.int, row)


def _leading_hits(blocks, offsets, prompts, unseen, outputs, hits):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    hit: cython.int
    leading: cython.bint
    with cython.nogil:
        for row in range(prompts.shape[0]):
            hit, leading = 0, True
            for i in range(offsets[row], offsets[row] + prompts[row]):
                if unseen[blocks[i]]:
                    unseen[blocks[i]] = 0
                    leading = False
                elif leading:
                    hit += 1
            if outputs:
                for i in range(offsets[row] + prompts[row], offsets[row + 1]):
                    unseen[blocks[i]] = 0
            hits[row] = hit


def _infer(ids, offsets, prompts, first, fresh, enough, last, users, several, session):
    r: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    u: cython.Py_ssize_t
    depth: cython.Py_ssize_t
    block: cython.int
    before: cython.int
    is_user: cython.bint
    with cython.nogil:
        for r in range(offsets.shape[0] - 1):
            row = first + r
            depth = 0
            while depth < prompts[r] and last[ids[offsets[r] + depth]] >= 0:
                depth += 1
            session[row] = fresh
            if depth > 0:
                block = ids[offsets[r] + depth - 1]
                before = last[block]
                if depth >= enough[before] and not several[block]:
                    session[row] = session[before]
            fresh += session[row] == fresh
            for i in range(offsets[r], offsets[r] + prompts[r]):
                block = ids[i]
                last[block] = cython.cast(cython.int, row)
                is_user = False
                for u in range(users.shape[1]):
                    if users[block, u] == session[row] or users[block, u] < 0:
                        users[block, u] = session[row]
                        is_user = True
                        break
                if not is_user:
                    several[block] = 1
    return fresh
