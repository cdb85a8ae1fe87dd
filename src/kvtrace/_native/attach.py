"""Where requests attach to the forest of earlier requests: measured in a trace (`walk`) and generated (`Growth`).

A request's attachment is the deepest block of its path that was seen before. Its age is the number of new blocks since
the block's last use. Its kind combines the distance from the end of the last path that used it (0, 1, 2-3, 4-10, more)
and the number of paths that used it (1, 2, 3 or more): 15 kinds, and 3 for partial blocks, which only end paths.

Twin: tests/reference/attach.py.
"""

import cython
import numpy as np
from cython.cimports.libc.stdlib import free, malloc, realloc

KINDS = 18  # 5 distances * 3 use counts for full blocks, then 3 for partial ones
FULL_KINDS = 15
NEAR_ENOUGH = cython.declare(cython.double, 0.03)  # accepted error of the age, as a share of it
OTHER_KIND = cython.declare(cython.double, 0.5)  # cost of one step between kinds, as a share of age + path length


def _kind(distance, uses):
    """The kind of a full block, by its distance from the end of the last path that used it and its uses."""
    band: cython.int = 4
    if distance <= 1:
        band = cython.cast(cython.int, distance)
    elif distance <= 3:
        band = 2
    elif distance <= 10:
        band = 3
    return band * 3 + (uses if uses < 3 else 3) - 1


def walk(hash_ids, offsets, unseen, parent, distinct):
    """The attachment of each row; ids must form a forest.

    `unseen`: row -> 1 if its partial block is not among its ids (and so counts as new). `parent`: row -> previous turn,
    or None. With None, a request continues the session of the last request that used its attachment, unless it adds no
    block after it, or more than three different blocks follow it in the whole trace (a prompt that many requests
    share). Returns four arrays with one value per row: leading blocks seen before, age and kind of the attachment
    (kinds of full blocks; 0 without an attachment), and 1 if the row continues a session.

    >>> hits, age, kind, continues = walk(np.array([0, 1, 2, 0, 1]), np.array([0, 2, 3, 5]), np.zeros(3), None, 3)
    >>> hits.tolist(), age.tolist(), kind.tolist(), continues.tolist()
    ([0, 0, 2], [0, 0, 1], [0, 0, 0], [0, 0, 0])
    """
    hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
    if len(hash_ids) and not (0 <= hash_ids.min() and hash_ids.max() < distinct):
        raise ValueError("hash_ids: an id is negative, or not below the number of distinct ids")
    rows = len(offsets) - 1
    hits, age = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    kind, continues = np.zeros(rows, dtype=np.int32), np.zeros(rows, dtype=np.int32)
    last_row = np.full(distinct, -1, dtype=np.int32)  # block -> row that used it last
    uses = np.zeros(distinct, dtype=np.int8)  # block -> rows that used it, 3 = or more
    ways, clock = np.zeros(distinct, dtype=np.int32), np.zeros(rows, dtype=np.int64)
    given = parent is not None
    parent = np.ascontiguousarray(parent if given else np.zeros(1), np.int64)
    if not given:
        _count_ways(hash_ids, offsets, np.zeros(distinct, dtype=np.int8), ways)
    _walk(hash_ids, offsets, np.ascontiguousarray(unseen, np.int64), given, parent, ways, hits, age, kind, continues,
          last_row, uses, clock)  # fmt: skip
    return hits, age, kind, continues


def _count_ways(hash_ids, offsets, seen, ways):
    """Block -> number of different blocks that follow it."""
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            for i in range(offsets[row], offsets[row + 1]):
                if not seen[hash_ids[i]]:
                    seen[hash_ids[i]] = 1
                    if i > offsets[row]:
                        ways[hash_ids[i - 1]] += 1


def _walk(hash_ids, offsets, unseen, given, parent, ways, hits, age, kind, continues, last_row, uses, clock):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    block: cython.longlong
    last: cython.int
    now: cython.longlong = 0  # new blocks so far
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            start = offsets[row]
            stop = offsets[row + 1]
            i = start
            while i < stop and uses[hash_ids[i]]:
                i += 1
            hits[row] = i - start
            if i > start:
                block = hash_ids[i - 1]
                last = last_row[block]
                age[row] = now - clock[last]
                kind[row] = _kind(offsets[last + 1] - offsets[last] + unseen[last] - hits[row], uses[block])
                continues[row] = stop - i + unseen[row] > 0 and ways[block] <= MOST_WAYS
            if given:
                continues[row] = parent[row] >= 0
            now += stop - i + unseen[row]
            clock[row] = now
            for i in range(start, stop):
                last_row[hash_ids[i]] = cython.cast(cython.int, row)
                if uses[hash_ids[i]] < 3:
                    uses[hash_ids[i]] += 1


class Growth:
    """A forest that grows by attachment: each row's path branches off at a block of the requested depth, kind and age.

    The cost of a block is the error of its age plus, for each step between its kind and the requested one, half the
    requested age and half the path's length. The block with the least cost is taken. Other depths of a row's band are
    tried, nearest first, until a block of a kind has an age error of at most 3 %. If a band has no block at all, the
    path branches off one block earlier, and so on. A path keeps its number of blocks. A block is dropped after
    `horizon` new blocks without a use, which bounds the memory independently of the number of rows.

    >>> forest = Growth(deepest=2, horizon=100, block_size=4)
    >>> hits, age, kind, continues = [0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 0, 1]
    >>> blocks, tail, session, parent = forest.grow(hits, hits, hits, [2, 2, 2], age, kind, [4, 3, 1], continues)
    >>> blocks.tolist(), tail.tolist(), session.tolist(), parent.tolist()
    ([0, 1, 2, 3, 0, 4], [4, 3, 1], [0, 1, 0], [-1, -1, 0])
    """

    def __cinit__(self, deepest: cython.Py_ssize_t, horizon: cython.longlong, block_size: cython.int):
        n: cython.Py_ssize_t = (deepest + 1) * _KINDS
        i: cython.Py_ssize_t
        self.deepest, self.horizon, self.block_size = deepest, horizon, block_size
        self.buckets = cython.cast(cython.pointer[Bucket], malloc(n * cython.sizeof(Bucket)))
        if self.buckets == cython.NULL:
            raise MemoryError
        for i in range(n):
            self.buckets[i].entries = cython.NULL
            self.buckets[i].length = self.buckets[i].room = self.buckets[i].current = 0
        for kind in range(_KINDS):
            for place, other in enumerate(_nearest_kinds(kind)):
                self.nearness[kind][place] = other
                self.apart[kind][place] = _steps(kind, other)

    def __dealloc__(self):
        i: cython.Py_ssize_t
        if self.buckets != cython.NULL:
            for i in range((self.deepest + 1) * _KINDS):
                free(self.buckets[i].entries)
        free(self.buckets)
        free(self.slots)
        free(self.path)

    @property
    def remembered(self):
        """Number of blocks in memory."""
        return self.count

    def grow(self, hits, shallow, deep, length, age, kind, tail, continues):
        """Add rows.

        Args, with one value per row: leading blocks to share, and the least and the greatest accepted number of them;
        total blocks (at least 1); age and kind of the attachment; tokens in the last block; 1 if the row continues the
        session of the last row that used its attachment.

        Returns block numbers (int32, paths end to end), and the tail, session and parent of each row.
        """
        columns = [
            np.ascontiguousarray(column, np.int64)
            for column in (hits, shallow, deep, length, age, kind, tail, continues)
        ]
        hits, shallow, deep, length, age, kind, tail, continues = columns
        rows = len(hits)
        if not all(len(column) == rows for column in columns):
            raise ValueError("the columns have different lengths")
        if rows and (shallow.min() < 0 or (shallow > hits).any() or (hits > deep).any() or deep.max() > self.deepest):
            raise ValueError("hits must be from shallow to deep, and deep at most deepest")
        if rows and (length.min() < 1 or (hits > length).any()):
            raise ValueError("length must be at least 1 and at least hits")
        if rows and (kind.min() < 0 or kind.max() >= _KINDS or tail.min() < 1 or tail.max() > self.block_size):
            raise ValueError(f"kind must be from 0 to {_KINDS - 1}, and tail from 1 to the block size")
        total = int(length.sum())
        if self.now + total >= (1 << 31) - 1:
            raise OverflowError("more than 2^31 blocks")
        blocks, tails = np.empty(total, dtype=np.int32), np.empty(rows, dtype=np.int32)
        session, parent = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        if rows and not self._grow(*columns, blocks, tails, session, parent):
            raise MemoryError
        return blocks, tails, session, parent

    def _grow(self, hits: cython.const[cython.longlong][::1], shallow: cython.const[cython.longlong][::1],
              deep: cython.const[cython.longlong][::1], length: cython.const[cython.longlong][::1],
              age: cython.const[cython.longlong][::1], kind: cython.const[cython.longlong][::1],
              tail: cython.const[cython.longlong][::1], continues: cython.const[cython.longlong][::1],
              blocks: cython.int[::1], tails: cython.int[::1], session: cython.longlong[::1],
              parent: cython.longlong[::1]):  # fmt: skip
        r: cython.Py_ssize_t
        i: cython.Py_ssize_t
        out: cython.Py_ssize_t = 0
        depth: cython.Py_ssize_t
        end: cython.Py_ssize_t
        slot: cython.int
        wanted: cython.int
        ok: cython.bint = True
        with cython.nogil:
            for r in range(hits.shape[0]):
                if not self._make_room(length[r]):
                    ok = False
                    break
                depth = hits[r]
                wanted = cython.cast(cython.int, kind[r])
                if depth == length[r]:  # the path ends at its attachment: its depth is the path's length
                    slot = self._attachment(cython.address(depth), depth, depth, wanted, age[r], length[r])
                else:
                    if wanted >= _FULL:
                        wanted -= _FULL  # nothing follows a partial block
                    end = deep[r] if deep[r] < length[r] else length[r] - 1
                    slot = self._attachment(cython.address(depth), shallow[r], end, wanted, age[r], length[r])
                session[r] = -1
                parent[r] = -1
                if slot >= 0 and continues[r]:
                    session[r] = self.slots[slot].session
                    parent[r] = self.slots[slot].last_row
                if session[r] < 0:
                    session[r] = self.sessions
                    self.sessions += 1
                for i in range(depth - 1, -1, -1):  # up from the attachment to the root
                    self.path[i] = slot
                    slot = self.slots[slot].parent
                for i in range(depth, length[r]):
                    self._new_block(i)
                if depth < length[r]:
                    self.slots[self.path[length[r] - 1]].tokens = cython.cast(cython.int, tail[r])
                for i in range(length[r]):
                    blocks[out + i] = self.slots[self.path[i]].number
                    if not self._use(self.path[i], i + 1, length[r], session[r]):
                        ok = False
                tails[r] = self.slots[self.path[length[r] - 1]].tokens
                out += length[r]
                self.row += 1
                if not ok:
                    break
        return ok

    def _attachment(self, depth, shallow, deep, kind, age, length):
        """The slot to attach to, and its depth; -1 and 0 if there is none."""
        i: cython.int
        kinds: cython.int
        best: Candidate
        step: cython.double = (age + length) * OTHER_KIND
        while depth[0] > 0:
            best.slot = -1
            best.cost = 0
            best.depth = 0
            kinds = 3 if kind >= _FULL else _FULL
            for i in range(kinds):
                if best.slot >= 0 and best.cost <= self.apart[kind][i] * step:
                    break  # kinds further away have a greater cost
                self._around(cython.address(best), depth[0], shallow, deep, self.nearness[kind][i], age,
                             self.apart[kind][i] * step)  # fmt: skip
            if best.slot >= 0:
                depth[0] = best.depth
                return best.slot
            if kind >= _FULL:
                kind -= _FULL  # the path's last block will be a new one
            depth[0] -= 1
            shallow = deep = depth[0]
        return -1

    def _around(self, best, wanted, shallow, deep, kind, age, penalty):
        """Update `best` with blocks of a kind: at the wanted depth, then around it in the band if the age is off."""
        step: cython.Py_ssize_t = 0
        place: cython.Py_ssize_t
        slot: cython.int
        cost: cython.double
        while wanted - step // 2 >= shallow or wanted + (step + 1) // 2 <= deep:
            place = wanted + (step + 1) // 2 if step % 2 else wanted - step // 2  # 0, +1, -1, +2, ...
            step += 1
            if place < shallow or place > deep:
                continue
            slot = self._nearest(place * _KINDS + kind, self.now - age)
            if slot < 0:
                continue
            cost = cython.cast(cython.double, self.now - age - self.slots[slot].last_use)
            cost = (cost if cost >= 0 else -cost) + penalty
            if best.slot < 0 or cost < best.cost:
                best.slot = slot
                best.cost = cost
                best.depth = place
            if cost - penalty <= age * NEAR_ENOUGH:
                break
        return 0

    def _nearest(self, index, wanted):
        """The block of a bucket whose last use is nearest to the wanted time, or -1. Ties: the earlier one."""
        bucket: cython.pointer[Bucket] = cython.address(self.buckets[index])
        low: cython.int = 0
        high: cython.int = bucket.length
        middle: cython.int
        oldest: cython.longlong = self.now - self.horizon
        later: cython.int
        if bucket.current == 0:
            return -1
        while low < high:
            middle = (low + high) // 2
            if bucket.entries[middle].last_use < wanted:
                low = middle + 1
            else:
                high = middle
        later = low
        while later < bucket.length and not self._is_current(bucket.entries[later], index, oldest):
            later += 1
        low -= 1
        while low >= 0 and not self._is_current(bucket.entries[low], index, oldest):
            low = low - 1 if bucket.entries[low].last_use >= oldest else -1
        if low < 0:
            return bucket.entries[later].slot if later < bucket.length else -1
        if later < bucket.length and bucket.entries[later].last_use - wanted < wanted - bucket.entries[low].last_use:
            return bucket.entries[later].slot
        return bucket.entries[low].slot

    def _is_current(self, entry, index, oldest):
        slot: cython.pointer[Block] = cython.address(self.slots[entry.slot])
        return slot.last_use == entry.last_use and slot.bucket == index and entry.last_use >= oldest

    def _new_block(self, place):
        """Add a full block at a position of the path (from 0), as a child of the block before."""
        slot: cython.pointer[Block] = cython.address(self.slots[self.count])
        slot.last_use = -1
        slot.parent = self.path[place - 1] if place > 0 else -1
        slot.number = cython.cast(cython.int, self.now)
        slot.bucket = -1
        slot.tokens = self.block_size
        slot.uses = 0
        self.path[place] = self.count
        self.count += 1
        self.now += 1
        return 0

    def _use(self, index, depth, length, session):
        """Record the use of a block by the current row's path; False if memory ran out."""
        slot: cython.pointer[Block] = cython.address(self.slots[index])
        kind: cython.int
        into: cython.int = -1
        slot.uses += slot.uses < 3
        slot.last_row = self.row
        slot.session = session
        if depth <= self.deepest:
            kind = _kind(length - depth, slot.uses)
            if slot.tokens < self.block_size:
                kind = _FULL + slot.uses - 1
            into = cython.cast(cython.int, depth * _KINDS + kind)
        if slot.last_use == self.now and slot.bucket == into:
            return True  # used again at the same time: its entry exists already
        if slot.bucket >= 0:
            self.buckets[slot.bucket].current -= 1
        slot.last_use = self.now
        slot.bucket = into
        return into < 0 or self._push(into, index)

    def _push(self, into, index):
        bucket: cython.pointer[Bucket] = cython.address(self.buckets[into])
        if bucket.length == bucket.room and not self._tidy(into):
            return False
        bucket.entries[bucket.length].last_use = self.now
        bucket.entries[bucket.length].slot = index
        bucket.length += 1
        bucket.current += 1
        return True

    def _tidy(self, into):
        """Drop a full bucket's stale entries, and grow it if at least half are current."""
        bucket: cython.pointer[Bucket] = cython.address(self.buckets[into])
        entries: cython.pointer[Entry]
        i: cython.int
        left: cython.int = 0
        oldest: cython.longlong = self.now - self.horizon
        for i in range(bucket.length):
            if self._is_current(bucket.entries[i], into, oldest):
                bucket.entries[left] = bucket.entries[i]
                left += 1
        bucket.length = left
        if 2 * left >= bucket.room:
            bucket.room = 2 * bucket.room if bucket.room else 4
            entries = cython.cast(
                cython.pointer[Entry],
                realloc(bucket.entries, cython.cast(cython.size_t, bucket.room) * cython.sizeof(Entry)),
            )
            if entries == cython.NULL:
                return False
            bucket.entries = entries
        return True

    def _make_room(self, length):
        """Reserve slots for a path of `length` new blocks; False if memory ran out."""
        slots: cython.pointer[Block]
        path: cython.pointer[cython.int]
        if length > self.path_room:
            path = cython.cast(
                cython.pointer[cython.int],
                realloc(self.path, cython.cast(cython.size_t, length) * 2 * cython.sizeof(cython.int)),
            )
            if path == cython.NULL:
                return False
            self.path = path
            self.path_room = length * 2
        if self.count + length > self.room:
            if self.count > 0 and not self._forget():
                return False
            if 2 * self.count + length > self.room:
                self.room = cython.cast(cython.int, 2 * self.count + length + 1024)
                slots = cython.cast(
                    cython.pointer[Block],
                    realloc(self.slots, cython.cast(cython.size_t, self.room) * cython.sizeof(Block)),
                )
                if slots == cython.NULL:
                    return False
                self.slots = slots
        return True

    def _forget(self):
        """Drop blocks beyond the horizon. A block is used whenever its children are, so no child loses its parent."""
        moved: cython.pointer[cython.int] = cython.cast(
            cython.pointer[cython.int], malloc(cython.cast(cython.size_t, self.count) * cython.sizeof(cython.int))
        )
        bucket: cython.pointer[Bucket]
        i: cython.int
        k: cython.Py_ssize_t
        left: cython.int = 0
        oldest: cython.longlong = self.now - self.horizon
        if moved == cython.NULL:
            return False
        for k in range((self.deepest + 1) * _KINDS):  # entries first, because `_is_current` needs the old slots
            bucket = cython.address(self.buckets[k])
            left = 0
            for i in range(bucket.length):
                if self._is_current(bucket.entries[i], k, oldest):
                    bucket.entries[left] = bucket.entries[i]
                    left += 1
            bucket.length = left
            bucket.current = left
        left = 0
        for i in range(self.count):
            if self.slots[i].last_use >= oldest:
                moved[i] = left
                self.slots[left] = self.slots[i]
                if self.slots[left].parent >= 0:
                    self.slots[left].parent = moved[self.slots[left].parent]
                left += 1
        self.count = left
        for k in range((self.deepest + 1) * _KINDS):
            bucket = cython.address(self.buckets[k])
            for i in range(bucket.length):
                bucket.entries[i].slot = moved[bucket.entries[i].slot]
        free(moved)
        return True


def _nearest_kinds(kind):
    """All kinds of full blocks, or of partial ones, in order of distance from the given kind."""
    same = range(FULL_KINDS) if kind < FULL_KINDS else range(FULL_KINDS, KINDS)
    return sorted(same, key=lambda other: (_steps(kind, other), other))


def _steps(kind, other):
    """Distance between two kinds of full blocks, or of partial ones."""
    return abs(kind // 3 - other // 3) + abs(kind % 3 - other % 3)
