"""A forest that grows by attachment: each request's path branches off where a record of a fitted trace asks for.

A record asks for hits: at a cache of each of sixteen capacities, the leading blocks that an LRU cache has. A block that
was last used by row r has as many blocks before it in the recency list as later rows used last: the distance of the
row, from a Fenwick tree over rows. A path is a few segments with the same last row, so its hits at all capacities cost
one look-up a segment.

Where no block fits, what is lacking is remembered, and the following rows ask for more: errors do not add up, and the
hit rates of the whole stream approach those of the trace at each capacity (error diffusion).

Twin: tests/reference/growth.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace._native.attach import _kind
from cython.cimports.libc.stdlib import free, malloc, realloc

from .attach import FULL_KINDS, KINDS

CAPACITIES = 16  # at which hits are compared
GAIN = cython.declare(cython.double, 0.3)  # the part of what is lacking that the next row asks for
MOST = cython.declare(cython.double, 1.0)  # and its limit, as a share of the blocks to share
STEP = cython.declare(cython.double, 0.1)  # cost of a step between kinds, in the blocks to share
TAIL = cython.declare(cython.double, 3.0)  # cost of a partial block that is off by a whole block, in the same unit
ALL = cython.declare(cython.double, 2.0)  # further times that the largest capacity counts
CLOSE = cython.declare(cython.double, 0.3)  # an error, in the same unit, at which the search ends
_NO_BLOCK = cython.declare(cython.double, 1e300)  # error of a row that asks for hits and finds no block
SLACK = cython.declare(cython.double, 0.0025)  # of all blocks: what may be lacking before the search is a full one
SLACK_TOKENS = cython.declare(cython.double, 0.001)  # of the tokens of last blocks
FAR = cython.declare(cython.double, 1.5)  # times as much, and the search is a wide one
QUICK_TRIES = cython.declare(cython.int, 4)  # blocks of a row that a quick search tries
GOOD = cython.declare(cython.double, 1.0)  # an error at which no later row of the window is tried


class Growth:
    """A forest that grows by attachment.

    The cost of a block is the difference between the hits that its path would have at each capacity and those that the
    record asks for, summed over the capacities, of which the largest counts three times; plus, for each step between
    its kind and the record's, a tenth of the blocks to share. The candidates are the blocks of each kind, nearest kind
    first, of each depth of the record's band, nearest depth first, that are nearest in the recency list: `probes`
    before and after the record's distance, until a path's error is small or `tries` blocks were tried. If a band has no
    block at all, the path branches off one block earlier, and so on. A path keeps its number of blocks.

    If no block fits well, the next rows of the same window are tried, up to `lookahead` of them, and the one that fits
    best goes first. While hits and tokens so far are about those that were asked for, the search is a quick one: of no
    later row, and of few blocks of the record's band. While many are lacking, it is `wide`. A block
    is forgotten at more than `horizon` distinct blocks since its last use, which bounds the memory independently of the
    number of rows.

    Args:
        deepest: The most blocks that a row shares.
        horizon: Distinct blocks.
        block_size: Tokens per block.
        capacities: Blocks, CAPACITIES of them, rising.
        correction: What the hits of the records are multiplied by at each capacity.
        counts_partial: Whether partial blocks are in the recency list.
        effort: `lookahead`, `tries` and `probes` of a full search; and `reach`: for a row that continues a session, the
            band is wider by this share of the blocks to share, upwards and downwards, and no deeper than its path.
        wide: The same, of a search while many hits are lacking.
        grace: Blocks, and tokens of last blocks, that count as asked for before the first row. The more they are, the
            more may be lacking at first before the search is a full one.

    >>> forest = Growth(2, 100, 4, np.arange(1, 17), np.ones(16))
    >>> hits, distance, kind, continues = [0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 0, 1]
    >>> rows = hits, hits, hits, [2, 2, 2], distance, [0] * 3, [0] * 3, kind, [4, 3, 1], continues, [0, 1, 2]
    >>> blocks, tail, session, parent, order = forest.grow(*rows)
    >>> blocks.tolist(), tail.tolist(), session.tolist(), parent.tolist()
    ([0, 1, 2, 3, 0, 4], [4, 3, 1], [0, 1, 0], [-1, -1, 0])
    """

    def __cinit__(
        self,
        deepest: cython.Py_ssize_t,
        horizon: cython.longlong,
        block_size: cython.int,
        capacities,
        correction,
        counts_partial=True,
        effort=(16, 24, 3, 0.0),
        wide=(40, 192, 12, 0.0),
        grace=(0, 0),
    ):
        n: cython.Py_ssize_t = (deepest + 1) * _KINDS
        i: cython.Py_ssize_t
        if len(capacities) != CAPACITIES or len(correction) != CAPACITIES:
            raise ValueError(f"there must be {CAPACITIES} capacities and corrections")
        self.deepest, self.horizon, self.block_size = deepest, horizon, block_size
        self.counts_partial = counts_partial
        self.full.lookahead, self.full.tries, self.full.probes, self.full.reach = effort
        self.wide.lookahead, self.wide.tries, self.wide.probes, self.wide.reach = wide
        for i in range(_CAPACITIES):
            self.capacities[i], self.correction[i] = capacities[i], correction[i]
            self.lacking[i] = 0
        self.asked_blocks, self.asked_tokens = grace
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
        free(self.rows)
        free(self.counts)

    @property
    def remembered(self):
        """Number of blocks in memory."""
        return self.count

    def grow(self, hits, shallow, deep, length, distance, fork, fork_distance, kind, tail, continues, window):
        """Add rows.

        Args, with one value per row: leading blocks to share, and the least and the greatest accepted number of them;
        total blocks (at least 1); distance of the attachment's last row; leading blocks that later rows used too, and
        the distance of the last of these; kind of the attachment; tokens in the last block; 1 if the row continues the
        session of the last row that used its attachment; number of the window, within which rows may be reordered.

        Returns block numbers (int32, paths end to end), the tail, session and parent of each path, and its row.
        """
        columns = [
            np.ascontiguousarray(column, np.int64)
            for column in (hits, shallow, deep, length, distance, fork, fork_distance, kind, tail, continues, window)
        ]
        hits, shallow, deep, length, _, fork, _, kind, tail, *_ = columns
        rows = len(hits)
        if not all(len(column) == rows for column in columns):
            raise ValueError("the columns have different lengths")
        if rows and (shallow.min() < 0 or (shallow > hits).any() or (hits > deep).any() or deep.max() > self.deepest):
            raise ValueError("hits must be from shallow to deep, and deep at most deepest")
        if rows and (length.min() < 1 or (hits > length).any() or fork.min() < 0 or (fork > hits).any()):
            raise ValueError("length must be at least 1 and at least hits, and fork from 0 to hits")
        if rows and (kind.min() < 0 or kind.max() >= _KINDS or tail.min() < 1 or tail.max() > self.block_size):
            raise ValueError(f"kind must be from 0 to {_KINDS - 1}, and tail from 1 to the block size")
        total = int(length.sum())
        if self.new_blocks + total >= (1 << 31) - 1:
            raise OverflowError("more than 2^31 blocks")
        blocks, tails = np.empty(total, dtype=np.int32), np.empty(rows, dtype=np.int32)
        session, parent = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        order = np.arange(rows)
        if rows and not self._grow(*columns, order, blocks, tails, session, parent):
            raise MemoryError
        return blocks, tails, session, parent, order

    def _grow(self, hits: cython.const[cython.longlong][::1], shallow: cython.const[cython.longlong][::1],
              deep: cython.const[cython.longlong][::1], length: cython.const[cython.longlong][::1],
              distance: cython.const[cython.longlong][::1], fork: cython.const[cython.longlong][::1],
              fork_distance: cython.const[cython.longlong][::1], kind: cython.const[cython.longlong][::1],
              tail: cython.const[cython.longlong][::1], continues: cython.const[cython.longlong][::1],
              window: cython.const[cython.longlong][::1], order: cython.longlong[::1], blocks: cython.int[::1],
              tails: cython.int[::1], session: cython.longlong[::1], parent: cython.longlong[::1]):  # fmt: skip
        n: cython.Py_ssize_t
        k: cython.Py_ssize_t
        r: cython.Py_ssize_t
        chosen: cython.Py_ssize_t
        stop: cython.Py_ssize_t = 0  # the first row of the next window
        out: cython.Py_ssize_t = 0
        longest: cython.longlong = 0  # path of the window
        error: cython.double
        least: cython.double
        wanted: Wanted
        best: Candidate
        other: Candidate
        is_whole: cython.bint = True  # False if memory ran out
        best.slot = -1
        best.depth = 0
        with cython.nogil:
            for n in range(hits.shape[0]):
                if n == stop:
                    longest = 0
                    while stop < hits.shape[0] and window[stop] == window[n]:
                        longest = length[stop] if length[stop] > longest else longest
                        stop += 1
                is_whole = self._make_room(longest) and self._new_row()
                if not is_whole:
                    break
                self.oldest = self._row_at(self.horizon)
                self._choose_effort()
                least = -1
                chosen = n
                for k in range(n, stop if stop - n < self.effort.lookahead else n + self.effort.lookahead):
                    r = order[k]
                    self._want(cython.address(wanted), hits[r], distance[r], fork[r], fork_distance[r],
                               cython.cast(cython.int, kind[r]), tail[r])  # fmt: skip
                    self._search(cython.address(other), cython.address(wanted), hits[r], shallow[r], deep[r], length[r],
                                 continues[r] != 0)  # fmt: skip
                    error = 0
                    if hits[r] > 0:
                        error = other.error / hits[r] if other.slot >= 0 else _NO_BLOCK
                    if least < 0 or error < least:
                        least = error
                        chosen = k
                        best = other
                    if least <= GOOD:
                        break
                r = order[chosen]
                for k in range(chosen, n, -1):  # the others keep their order
                    order[k] = order[k - 1]
                order[n] = r
                if hits[r] > 0:
                    self._want(cython.address(wanted), hits[r], distance[r], fork[r], fork_distance[r],
                               cython.cast(cython.int, kind[r]), tail[r])  # fmt: skip
                    self._lack(cython.address(wanted), cython.address(best))
                parent[n] = self.slots[best.slot].last_use if best.slot >= 0 and continues[r] else -1
                is_whole = self._place(cython.address(best), length[r], tail[r], continues[r] != 0, blocks, out)
                if not is_whole:
                    break
                session[n] = self.rows[self.row - self.base].session
                tails[n] = self.slots[self.path[length[r] - 1]].tokens
                self.lacking_tokens += tail[r] - tails[n]
                self.asked_tokens += tail[r]
                self.asked_blocks += length[r]
                out += length[r]
                self.row += 1
        return is_whole

    # -- the recency list ----------------------------------------------------------------------------------------

    def _distance(self, row):
        """Number of blocks that later rows used last."""
        k: cython.longlong = row - self.base + 1
        later: cython.longlong = self.listed
        while k > 0:
            later -= self.counts[k]
            k -= k & -k
        return later

    def _row_at(self, distance):
        """The first row at that distance or less."""
        left: cython.longlong = self.listed - distance
        place: cython.longlong = 0
        step: cython.longlong = self.row_room
        if left <= 0:
            return self.base
        while step > 0:
            if place + step <= self.row_room and self.counts[place + step] < left:
                place += step
                left -= self.counts[place]
            step //= 2
        return self.base + place

    def _add(self, row, blocks):
        """Add to the number of blocks that a row used last."""
        k: cython.longlong = row - self.base + 1
        self.listed += blocks
        while k <= self.row_room:
            self.counts[k] += blocks
            k += k & -k
        return 0

    def _take(self, depth):
        """The present row uses the first `depth` blocks of its path, segment by segment."""
        row: cython.longlong
        state: cython.pointer[Row]
        taken: cython.int
        while depth > 0:
            row = self.slots[self.path[depth - 1]].last_use
            state = cython.address(self.rows[row - self.base])
            taken = state.taken
            self._add(row, taken - depth + (state.uncounted if depth == state.length else 0))
            state.taken = cython.cast(cython.int, depth)
            state.fork = self.path[depth - 1]
            depth = taken
        return 0

    def _new_row(self):
        """Make room for a row: forgotten rows are dropped. False if memory ran out."""
        k: cython.longlong
        j: cython.longlong
        left: cython.longlong = self.row - self.oldest
        room: cython.longlong = self.row_room if self.row_room else 1024
        rows: cython.pointer[Row]
        counts: cython.pointer[cython.longlong]
        blocks: cython.longlong
        if self.row - self.base < self.row_room:
            return True
        while room < 2 * left:
            room *= 2
        rows = cython.cast(cython.pointer[Row], malloc(cython.cast(cython.size_t, room) * cython.sizeof(Row)))
        counts = cython.cast(
            cython.pointer[cython.longlong],
            malloc(cython.cast(cython.size_t, room + 1) * cython.sizeof(cython.longlong)),
        )
        if rows == cython.NULL or counts == cython.NULL:
            free(rows)
            free(counts)
            return False
        for k in range(room + 1):
            counts[k] = 0
        self.listed = 0
        for k in range(left):
            rows[k] = self.rows[self.oldest - self.base + k]
            blocks = rows[k].length - rows[k].taken
            if blocks > 0:
                blocks -= rows[k].uncounted
            self.listed += blocks
            j = k + 1
            while j <= room:
                counts[j] += blocks
                j += j & -j
        free(self.rows)
        free(self.counts)
        self.rows = rows
        self.counts = counts
        self.row_room = room
        self.base = self.oldest
        return True

    # -- the choice ----------------------------------------------------------------------------------------------

    def _want(self, wanted, hits, distance, fork, fork_distance, kind, tail):
        """What a record asks for: two segments, `fork` blocks and the others, each from its distance on."""
        j: cython.int
        deep: cython.double
        shallow: cython.double
        more: cython.double
        most: cython.double = MOST * hits
        for j in range(_CAPACITIES):
            deep = self.capacities[j] - distance
            deep = 0 if deep < 0 else (hits - fork if deep > hits - fork else deep)
            shallow = self.capacities[j] - fork_distance
            shallow = 0 if shallow < 0 else (fork if shallow > fork else shallow)
            wanted.recorded[j] = (deep + shallow) * self.correction[j]
            more = GAIN * self.lacking[j]
            more = -most if more < -most else (most if more > most else more)
            wanted.hits[j] = wanted.recorded[j] + more
        wanted.tokens = tail + GAIN * self.lacking_tokens
        wanted.blocks = hits
        wanted.step = STEP * hits
        wanted.distance = distance
        wanted.kind = kind
        return 0

    def _search(self, best, wanted, depth, shallow, deep, length, continues):
        """The block with the least cost, and its depth; slot -1 and depth 0 if there is none."""
        i: cython.int
        kinds: cython.int
        more: cython.Py_ssize_t  # depths on each side
        row: cython.longlong = self._row_at(wanted.distance)
        best.slot = -1
        best.depth = 0
        best.cost = best.error = 0
        if depth == length:  # the path ends at its attachment: its depth is the path's length
            shallow = deep = depth
        else:
            more = cython.cast(cython.Py_ssize_t, self.effort.reach * depth) if continues else 0
            more = more if more < length - 1 - depth else length - 1 - depth
            shallow = shallow if shallow < depth - more else (depth - more if depth - more > 1 else 1)
            deep = deep if deep > depth + more else depth + more
            deep = deep if deep < self.deepest else self.deepest
            deep = deep if deep < length else length - 1
            if wanted.kind >= _FULL:
                wanted.kind -= _FULL  # nothing follows a partial block
        while depth > 0:
            best.tries = 0
            kinds = _KINDS - _FULL if wanted.kind >= _FULL else _FULL
            for i in range(kinds):
                if best.slot >= 0 and (
                    best.cost <= self.apart[wanted.kind][i] * wanted.step or best.tries >= self.effort.tries
                ):
                    break  # kinds further away have a greater cost
                self._around(best, wanted, depth, shallow, deep, self.nearness[wanted.kind][i], row,
                             self.apart[wanted.kind][i] * wanted.step)  # fmt: skip
            if best.slot >= 0:
                break
            if wanted.kind >= _FULL:
                wanted.kind -= _FULL  # the path's last block will be a new one
            depth -= 1
            shallow = deep = depth
        return 0

    def _around(self, best, wanted, depth, shallow, deep, kind, row, penalty):
        """Try blocks of a kind around a row: at the wanted depth, then at the other depths of the band."""
        step: cython.Py_ssize_t = 0
        place: cython.Py_ssize_t
        index: cython.Py_ssize_t
        bucket: cython.pointer[Bucket]
        low: cython.int
        high: cython.int
        middle: cython.int
        left: cython.int
        tries: cython.int
        while depth - step // 2 >= shallow or depth + (step + 1) // 2 <= deep:
            place = depth + (step + 1) // 2 if step % 2 else depth - step // 2  # 0, +1, -1, +2, ...
            step += 1
            if place < shallow or place > deep:
                continue
            index = place * _KINDS + kind
            bucket = cython.address(self.buckets[index])
            if bucket.current == 0:
                continue
            tries = best.tries
            low = 0
            high = bucket.length
            while low < high:
                middle = (low + high) // 2
                if bucket.entries[middle].last_use < row:
                    low = middle + 1
                else:
                    high = middle
            left = self.effort.probes
            while high < bucket.length and left > 0:
                if self._is_current(bucket.entries[high], index):
                    self._try(best, wanted, bucket.entries[high].slot, place, penalty)
                    left -= 1
                high += 1
            left = self.effort.probes
            low -= 1
            while low >= 0 and left > 0 and bucket.entries[low].last_use >= self.oldest:
                if self._is_current(bucket.entries[low], index):
                    self._try(best, wanted, bucket.entries[low].slot, place, penalty)
                    left -= 1
                low -= 1
            if best.tries > tries and (best.error <= CLOSE * wanted.blocks or best.tries >= self.effort.tries):
                break
        return 0

    def _try(self, best, wanted, slot, depth, penalty):
        """Update the best block. Ties: the earlier one tried."""
        j: cython.int
        off: cython.double
        hits: cython.double[_CAPACITIES]
        cost: cython.double = penalty
        error: cython.double = penalty
        best.tries += 1
        self._hits(hits, slot, depth)
        if wanted.kind >= _FULL:
            off = (wanted.tokens - self.slots[slot].tokens) / self.block_size
            cost += (off if off >= 0 else -off) * TAIL * wanted.blocks
        for j in range(_CAPACITIES):
            off = wanted.hits[j] - hits[j]
            cost += off if off >= 0 else -off
            off = wanted.recorded[j] - hits[j]
            error += off if off >= 0 else -off
        off = wanted.hits[_CAPACITIES - 1] - hits[_CAPACITIES - 1]
        cost += ALL * (off if off >= 0 else -off)
        if best.slot < 0 or cost < best.cost:
            best.slot = slot
            best.depth = depth
            best.cost = cost
            best.error = error
        return 0

    def _hits(self, hits, slot, depth):
        """Hits at each capacity of a path that shares the blocks up to one."""
        j: cython.int
        row: cython.longlong
        state: cython.pointer[Row]
        distance: cython.longlong
        blocks: cython.double
        for j in range(_CAPACITIES):
            hits[j] = 0
        while depth > 0:
            row = self.slots[slot].last_use
            state = cython.address(self.rows[row - self.base])
            distance = self._distance(row)
            for j in range(_CAPACITIES - 1, -1, -1):
                blocks = self.capacities[j] - distance
                if blocks <= 0:
                    break
                hits[j] += blocks if blocks < depth - state.taken else depth - state.taken
            depth = state.taken
            slot = state.fork
        return 0

    def _lack(self, wanted, best):
        """Remember what a row lacks."""
        j: cython.int
        hits: cython.double[_CAPACITIES]
        self._hits(hits, best.slot, best.depth)
        for j in range(_CAPACITIES):
            self.lacking[j] += wanted.recorded[j] - hits[j]
        return 0

    def _choose_effort(self):
        """A quick search while the hits so far are about those that were asked for, a wide one if many are lacking."""
        j: cython.int
        off: cython.double
        worst: cython.double  # what is lacking, in what may be lacking
        worst = (self.lacking_tokens if self.lacking_tokens >= 0 else -self.lacking_tokens) / SLACK_TOKENS
        worst = worst / self.asked_tokens if worst > 0 else 0
        for j in range(_CAPACITIES):
            off = (self.lacking[j] if self.lacking[j] >= 0 else -self.lacking[j]) / SLACK
            if off > worst * self.asked_blocks:
                worst = off / self.asked_blocks
        if worst <= 1:
            self.effort.lookahead = self.effort.probes = 1
            self.effort.tries = QUICK_TRIES
            self.effort.reach = 0
            return 0
        self.effort = self.wide if worst > FAR else self.full
        return 0

    # -- the blocks ----------------------------------------------------------------------------------------------

    def _place(self, best, length, tail, continues, blocks, first):
        """Add the path of the present row, and write its block numbers; False if memory ran out."""
        i: cython.Py_ssize_t
        slot: cython.int = best.slot
        state: cython.pointer[Row] = cython.address(self.rows[self.row - self.base])
        state.session = -1
        if slot >= 0 and continues:
            state.session = self.rows[self.slots[slot].last_use - self.base].session
        if state.session < 0:
            state.session = self.sessions
            self.sessions += 1
        for i in range(best.depth - 1, -1, -1):  # up from the attachment to the root
            self.path[i] = slot
            slot = self.slots[slot].parent
        self._take(best.depth)
        for i in range(best.depth, length):
            self._new_block(i)
        slot = self.path[length - 1]
        if best.depth < length:
            self.slots[slot].tokens = cython.cast(cython.int, tail)
        state.length = cython.cast(cython.int, length)
        state.taken = 0
        state.fork = -1
        state.uncounted = not self.counts_partial and self.slots[slot].tokens < self.block_size
        self._add(self.row, length - state.uncounted)
        for i in range(length):
            blocks[first + i] = self.slots[self.path[i]].number
            if not self._use(self.path[i], i + 1, length):
                return False
        return True

    def _new_block(self, place):
        """Add a full block at a position of the path (from 0), as a child of the block before."""
        slot: cython.pointer[Block] = cython.address(self.slots[self.count])
        slot.last_use = -1
        slot.parent = self.path[place - 1] if place > 0 else -1
        slot.number = cython.cast(cython.int, self.new_blocks)
        slot.bucket = -1
        slot.tokens = self.block_size
        slot.uses = 0
        slot.turn = 0
        self.path[place] = self.count
        self.count += 1
        self.new_blocks += 1
        return 0

    def _use(self, slot, depth, length):
        """Record the use of a block by the present row's path; False if memory ran out."""
        block: cython.pointer[Block] = cython.address(self.slots[slot])
        kind: cython.int
        block.uses += block.uses < 3
        if block.bucket >= 0:
            self.buckets[block.bucket].current -= 1
        block.last_use = self.row
        block.bucket = -1
        block.turn += 1  # its older entries are stale
        if depth > self.deepest:
            return True
        kind = _kind(length - depth, block.uses)
        if block.tokens < self.block_size:
            kind = _FULL + block.uses - 1
        block.bucket = cython.cast(cython.int, depth * _KINDS + kind)
        return self._push(block.bucket, slot)

    def _is_current(self, entry, index):
        block: cython.pointer[Block] = cython.address(self.slots[entry.slot])
        return block.turn == entry.turn and block.bucket == index and entry.last_use >= self.oldest

    def _push(self, into, slot):
        bucket: cython.pointer[Bucket] = cython.address(self.buckets[into])
        if bucket.length == bucket.room and not self._tidy(into):
            return False
        bucket.entries[bucket.length].last_use = self.row
        bucket.entries[bucket.length].slot = slot
        bucket.entries[bucket.length].turn = self.slots[slot].turn
        bucket.length += 1
        bucket.current += 1
        return True

    def _tidy(self, into):
        """Make room in a full bucket: drop its stale entries if they are many, else grow it."""
        bucket: cython.pointer[Bucket] = cython.address(self.buckets[into])
        entries: cython.pointer[Entry]
        if bucket.length > 0 and (
            2 * bucket.current < bucket.length or bucket.entries[bucket.length // 2].last_use < self.oldest
        ):
            self._drop_stale(into)
        if 2 * bucket.length >= bucket.room:
            bucket.room = 2 * bucket.room if bucket.room else 4
            entries = cython.cast(
                cython.pointer[Entry],
                realloc(bucket.entries, cython.cast(cython.size_t, bucket.room) * cython.sizeof(Entry)),
            )
            if entries == cython.NULL:
                return False
            bucket.entries = entries
        return True

    def _drop_stale(self, into):
        """Keep the current entries of a bucket."""
        bucket: cython.pointer[Bucket] = cython.address(self.buckets[into])
        i: cython.int
        left: cython.int = 0
        for i in range(bucket.length):
            if self._is_current(bucket.entries[i], into):
                bucket.entries[left] = bucket.entries[i]
                left += 1
        bucket.length = left
        bucket.current = left
        return 0

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
            # what can be forgotten may be so little that a copy of the rest is not worth it
            if 4 * self._distance(self.oldest - 1) < 3 * self.count and not self._forget():
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
        if moved == cython.NULL:
            return False
        for k in range((self.deepest + 1) * _KINDS):  # entries first, because `_is_current` needs the old slots
            self._drop_stale(k)
        left = 0
        for i in range(self.count):
            if self.slots[i].last_use >= self.oldest:
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
        for k in range(self.oldest - self.base, self.row - self.base):
            if self.rows[k].taken > 0:
                self.rows[k].fork = moved[self.rows[k].fork]
        free(moved)
        return True


def _nearest_kinds(kind):
    """All kinds of full blocks, or of partial ones, in order of distance from the given kind."""
    same = range(FULL_KINDS) if kind < FULL_KINDS else range(FULL_KINDS, KINDS)
    return sorted(same, key=lambda other: (_steps(kind, other), other))


def _steps(kind, other):
    """Distance between two kinds of full blocks, or of partial ones. A step between uses counts as three."""
    return abs(kind // 3 - other // 3) + 3 * abs(kind % 3 - other % 3)
