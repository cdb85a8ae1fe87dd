"""Policies that estimate when a block is used again, from the run so far or from a table learned before."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.queues import Heaps, Recency
from cython.cimports.libc.math import exp

from kvtrace._base.errors import UsageError
from kvtrace.cache.structures.reuse_table import default_table

LAST_TURN = 10
FIRST_GAP_MS = cython.declare(cython.double, 60_000.0)  # prior: each category starts with one reuse after this gap


class Workload(Policy):
    """Workload-aware: evicts the block that is least likely to be reused soon, learned per category of requests.

    Wang and others, "KVCache Cache in the Wild", USENIX ATC 2025 (arXiv 2506.02634), order blocks by (probability of
    reuse within the next `life`, given the time since the last use; offset in the prompt, deeper first), with an
    exponential distribution of reuse times for each category of requests. Here a category is a pair of the column
    `type` and the turn, if the trace has them. The turn comes from the column `turn`, else it is counted along
    `parent`; turns from the tenth on are equal. Without either, there is one category.

    The policy learns during the run, from past requests only. Each use of a block by a request of category c adds 1 to
    uses[c]. The next use of that block, resident or not, adds 1 to reused[c] and the gap in ms to gaps[c].

        p = (reused + 1) / (uses + 2)        rate = (reused + 1) / (gaps + 60,000)
        chance = p (e^(-rate t) - e^(-rate (t + life))) / (1 - p + p e^(-rate t)),    t: now - last use

    A block belongs to the category of the last request that used it. Within a category the chance falls with t, so the
    least recent block (of one request the deepest) is the candidate, as in the paper. The candidates of all categories
    are compared. Ties: the deeper block, then the category that appeared first. With one category this is LRU.

    Differences from the paper: the chance is conditional (the paper uses the numerator, for blocks that are reused at
    all). The policy learns at each use and never forgets; the paper fits samples of the last hour. `life` is one
    parameter, not measured. A use too recent to have been reused counts against p.

    `insert` and `use` update the statistics, also for pinned blocks; `release` only makes a block evictable, leaf-first
    or flat.
    """

    def __init__(self, context: Context, life_ms=600_000.0):
        Policy.__init__(self, context)
        if not life_ms > 0:
            raise UsageError(f"the lifetime must be above 0 ms, not {life_ms}. Try workload:10m.")
        self.recency, self.life_ms = Recency(context), life_ms
        self.category = categories(context.trace)
        self.categories = max(self.category, default=0) + 1
        self.heaps = Heaps(context.blocks, self.categories)
        self.arrival = np.array(context.demand.arrival, dtype=np.float64)
        self.last = np.full(context.blocks, NONE, dtype=np.int32)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.uses, self.reused = np.zeros(self.categories), np.zeros(self.categories)
        self.gaps = np.zeros(self.categories)

    def insert(self, block):
        before: cython.int = self.last[block]
        row: cython.int = cython.cast(cython.int, self.context.request)
        if before >= 0:
            self.reused[self.category[before]] += 1
            self.gaps[self.category[before]] += self.arrival[row] - self.arrival[before]
        self.uses[self.category[row]] += 1
        self.last[block] = row
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        if self.heaps.holds(block):
            self.heaps.drop(block)
        return self.insert(block)

    def release(self, block):
        return self.heaps.put(self.category[self.last[block]], block, 0.0, self.stamp[block])

    def victim(self):
        category: cython.int
        block: cython.int
        best: cython.int = NONE
        chance: cython.double
        lowest: cython.double = 0.0
        for category in range(self.categories):
            block = self.heaps.first(category)
            if block < 0:
                continue
            chance = self._chance(category, self.context.now - self.arrival[self.last[block]])
            if (
                best < 0
                or chance < lowest
                or (chance == lowest and self.recency.depth[block] > self.recency.depth[best])
            ):
                best, lowest = block, chance
        return best

    def remove(self, block):
        return self.heaps.drop(block)

    def _chance(self, category, since_ms):
        """Probability that a block of a category is reused within `life_ms`, if it was not used for `since_ms`."""
        p: cython.double = (self.reused[category] + 1) / (self.uses[category] + 2)
        rate: cython.double = (self.reused[category] + 1) / (self.gaps[category] + FIRST_GAP_MS)
        still: cython.double = p * exp(-rate * since_ms)
        return still * (1 - exp(-rate * self.life_ms)) / (1 - p + still)


def categories(trace):
    """int32: request -> its category; pairs of type and turn are numbered by first appearance."""
    kinds = trace.extra.get("type")
    kinds = [None] * len(trace) if kinds is None else [str(kind) for kind in kinds.tolist()]
    number: dict = {}
    return np.array(
        [number.setdefault(pair, len(number)) for pair in zip(kinds, turns(trace), strict=True)], dtype=np.int32
    )


def turns(trace):
    """Request -> its turn, at most LAST_TURN; 1 if it is not known."""
    if "turn" in trace.extra:
        return [_turn(value) for value in trace.extra["turn"].tolist()]
    turns = [1] * len(trace)
    if trace.parent is not None:
        for row, parent in enumerate(trace.parent.tolist()):
            if parent >= 0:
                turns[row] = min(turns[parent] + 1, LAST_TURN)
    return turns


def _turn(value):
    """The turn that a value of the column states; 1 if it is not a number."""
    if not isinstance(value, (int, float)) or value != value:
        return 1
    return int(min(max(value, 0), LAST_TURN))


DECAY = 0.9
SPARED = 1e300  # a density above all others
MULTIPLIER = 6364136223846793005
INCREMENT = 1442695040888963407


class LHD(Policy):
    """LHD, least hit density (Beckmann, Chen and Cidon, NSDI'18): evicts the block with the fewest expected hits per
    time.

    The hit density of a block is its probability of a hit divided by its expected remaining lifetime. Both are
    estimated from blocks of the same class and age: for age a, hits at age a or more, divided by the total time that
    blocks stayed resident after age a. The clock counts uses of blocks; the age is the time since the last use. A class
    is the depth in the prefix tree (0-1, 2-7, 8-31, 32 or more blocks before it) and the uses since the block became
    resident (1, 2, 3, 4 or more). The paper classifies by application and by the ages of the last two hits instead.

    Hits and evictions are counted by class and age. Every `interval` of the clock (8 uses per block of the capacity, at
    least 1,024), the counts are multiplied by 0.9 and the densities are recomputed. A class without counts gets the
    densities of all classes together. Before the first interval, the density is uses / (age + 1). There are 256 ages of
    2^shift clock ticks each, which cover four capacities at first. If more than 1 % of the counts are at the last age,
    the shift grows by one.

    One inserted block in 1,024, drawn at random, is an explorer, as in the paper: it is not evicted before a hit or the
    last age. Otherwise no block would reach ages beyond the usual eviction, and hits at those ages would stay unknown.

    As in the paper, the victim is the block with the least density in a sample of 64 evictable blocks (the parameter),
    drawn with a fixed seed; with fewer blocks, in all of them. Ties: the least recent use. A hit on a pinned block
    counts; `release` only makes a block evictable. A flat pool may evict a parent before its child; a leaf-first pool
    does not, but keeps old roots. Compare both.
    """

    def __init__(self, context: Context, candidates=64):
        Policy.__init__(self, context)
        if not candidates >= 1:
            raise UsageError(f"the parameter of lhd must be at least 1, not {candidates}. Try lhd:64.")
        depth = np.asarray(Recency(context).depth)
        self.depth_class = np.searchsorted([2, 8, 32], depth, side="right").astype(np.int8)
        self.hits = np.zeros((CLASSES + 1, AGES))
        self.evictions = np.zeros((CLASSES + 1, AGES))
        self.density = (np.arange(CLASSES + 1) % USES + 1)[:, None] / (np.arange(AGES) + 1)
        self.uses = np.zeros(context.blocks, dtype=np.int32)
        self.explores = np.zeros(context.blocks, dtype=np.int8)
        self.last = np.zeros(context.blocks, dtype=np.int64)
        self.idle = np.empty(context.blocks, dtype=np.int32)
        self.place = np.full(context.blocks, NONE, dtype=np.int32)
        self.candidates, self.count, self.clock, self.random = candidates, 0, 0, 1
        self.interval = max(8 * context.capacity, 1024)
        self.shift = max(int(4 * context.capacity - 1).bit_length() - (AGES - 1).bit_length(), 0)

    def insert(self, block):
        self._tick()
        self.uses[block], self.last[block] = 1, self.clock
        self._draw()
        self.explores[block] = (self.random >> 54) == 0  # 1 of 1,024
        return 0

    def use(self, block):
        self._tick()
        self.hits[self._class(block), self._age(block)] += 1
        self.uses[block] += 1
        self.explores[block] = 0
        self.last[block] = self.clock
        if self.place[block] >= 0:
            self._drop(block)
        return 0

    def release(self, block):
        self.idle[self.count] = block
        self.place[block] = self.count
        self.count += 1
        return 0

    def victim(self):
        drawn: cython.int = min(self.count, self.candidates)
        all_of_them: cython.bint = drawn == self.count
        best: cython.int = NONE
        least: cython.double = 0.0
        number: cython.int
        for number in range(drawn):
            block: cython.int = self.idle[number if all_of_them else self._place_drawn()]
            age: cython.int = self._age(block)
            density: cython.double = self.density[self._class(block), age]
            if self.explores[block] and age < AGES - 1:
                density = SPARED
            if best == NONE or density < least or (density == least and self.last[block] < self.last[best]):
                best, least = block, density
        return best

    def remove(self, block):
        self.evictions[self._class(block), self._age(block)] += 1
        return self._drop(block)

    def _class(self, block):
        return self.depth_class[block] * USES + min(self.uses[block], USES) - 1

    def _age(self, block):
        age: cython.longlong = (self.clock - self.last[block]) >> self.shift
        return cython.cast(cython.int, min(age, AGES - 1))

    def _tick(self):
        self.clock += 1
        return self._reconfigure() if self.clock % self.interval == 0 else 0

    def _drop(self, block):
        """Remove a block from the idle blocks; the last one takes its place."""
        self.count -= 1
        last: cython.int = self.idle[self.count]
        self.idle[self.place[block]] = last
        self.place[last] = self.place[block]
        self.place[block] = NONE
        return 0

    def _draw(self):
        """The next random number, by the linear congruential generator of Knuth's MMIX."""
        self.random = self.random * MULTIPLIER + INCREMENT
        return 0

    def _place_drawn(self):
        """A random place among the idle blocks."""
        self._draw()
        return cython.cast(cython.int, (self.random >> 33) % cython.cast(cython.ulonglong, self.count))

    def _reconfigure(self):
        """Make ages coarser if needed, decay the counts, and recompute the densities."""
        class_: cython.int
        age: cython.int
        if self._overflows():
            self._coarsen()
        for age in range(AGES):
            self.hits[CLASSES, age] = self.evictions[CLASSES, age] = 0.0
            for class_ in range(CLASSES):
                self.hits[class_, age] *= DECAY
                self.evictions[class_, age] *= DECAY
        for age in range(AGES):
            for class_ in range(CLASSES):
                self.hits[CLASSES, age] += self.hits[class_, age]
                self.evictions[CLASSES, age] += self.evictions[class_, age]
        self._model(CLASSES)
        for class_ in range(CLASSES):
            self._model(class_)
        return 0

    def _overflows(self):
        """Whether more than 1 % of the counts are at the last age."""
        class_: cython.int
        age: cython.int
        last: cython.double = 0.0
        total: cython.double = 0.0
        for class_ in range(CLASSES):
            part: cython.double = 0.0
            for age in range(AGES):
                part += self.hits[class_, age]
            total += part
            last += self.hits[class_, AGES - 1]
        for class_ in range(CLASSES):
            part = 0.0
            for age in range(AGES):
                part += self.evictions[class_, age]
            total += part
            last += self.evictions[class_, AGES - 1]
        return 100 * last > total

    def _coarsen(self):
        """Double the length of an age: merge the counts of two ages into one."""
        class_: cython.int
        age: cython.int
        self.shift += 1
        for class_ in range(CLASSES):
            for age in range(AGES // 2):
                self.hits[class_, age] = self.hits[class_, 2 * age] + self.hits[class_, 2 * age + 1]
                self.evictions[class_, age] = self.evictions[class_, 2 * age] + self.evictions[class_, 2 * age + 1]
            for age in range(AGES // 2, AGES):
                self.hits[class_, age] = self.evictions[class_, age] = 0.0
        return 0

    def _model(self, class_):
        """Compute the densities of a class, from the oldest age to the youngest."""
        age: cython.int
        hits: cython.double = 0.0  # at this age or later
        ends: cython.double = 0.0  # hits and evictions
        stay: cython.double = 0.0  # total time that those blocks stayed resident after this age
        for age in range(AGES - 1, -1, -1):
            hits += self.hits[class_, age]
            ends += self.hits[class_, age] + self.evictions[class_, age]
            stay += ends
            self.density[class_, age] = hits / stay if stay > 0 else 0.0
        if ends == 0:
            for age in range(AGES):
                self.density[class_, age] = self.density[CLASSES, age]
        return 0


class PathState:
    """What an engine knows about each block of a request when it uses it, as one small number: the block's cell.

    The last, partial block of a prompt is its *tail*. A block that requests of two sessions have used is *shared*. All
    other blocks are *private*. The cell of a tail is the request's turn; of a shared block the number of its uses; of a
    private block the request's turn, whether the block was new in a first turn, the new blocks of the request, and the
    time since the turn before. All are counted in the buckets of `Bounds`.

    The turn comes from the column `turn`, else it is counted along `parent`, as an engine counts the messages of a
    chat. A trace without both has it inferred: a request continues the last request that used its deepest known block,
    if it has all full blocks of that one and more tokens, and the block is not shared.

    Nothing is forgotten when a block is evicted: the owner of a block is kept, as ghosts are. Blocks of outputs that no
    prompt has are tails.
    """

    def __init__(self, context: Context, bounds, recency: Recency):
        self.depth = recency.depth
        demand, trace = context.demand, context.demand.trace
        rows = len(demand.full)
        self.ids, self.start, self.full = demand.ids, demand.start, demand.full
        self.prompt_blocks = context.blocks - int(demand.grown.sum())
        self.tokens = trace.input_length.astype(np.int64)
        self.block_size = trace.block_size
        self.turn_bounds = np.array(bounds.turns, dtype=np.float64)
        self.use_bounds = np.array(bounds.uses, dtype=np.float64)
        self.new_bounds = np.array(bounds.new_blocks, dtype=np.float64)
        self.gap_bounds = np.array(bounds.gaps_ms, dtype=np.float64)
        self.knows_turns = "turn" in trace.extra or trace.parent is not None
        self.turn = np.array(turns(trace) if self.knows_turns else [1] * rows, dtype=np.int32)
        self.session = np.arange(rows, dtype=np.int32)
        self.arrived = np.zeros(rows)
        self.owner = np.full(context.blocks, -1, dtype=np.int32)
        self.uses = np.zeros(context.blocks, dtype=np.int32)
        self.is_shared, self.is_later = np.zeros((2, context.blocks), dtype=np.int8)

    def begin(self, row, now):
        """A request arrives: find what it continues, and the cells of its private blocks and its tail."""
        k: cython.Py_ssize_t
        seen: cython.int = 0
        start: cython.Py_ssize_t = self.start[row]
        while seen < self.full[row] and self.owner[self.ids[start + seen]] >= 0:
            seen += 1
        gap_ms: cython.double = self._continue(row, seen, now)
        self.row, self.arrived[row] = row, now
        for k in range(start, start + seen):
            if self.session[self.owner[self.ids[k]]] != self.session[row]:
                self.is_shared[self.ids[k]] = 1
        turn: cython.int = bucket(self.turn_bounds, self.turn[row])
        news: cython.int = cython.cast(cython.int, self.new_bounds.shape[0]) + 1
        gaps: cython.int = cython.cast(cython.int, self.gap_bounds.shape[0]) + 2
        new: cython.int = bucket(self.new_bounds, self.full[row] - seen)
        gap: cython.int = 1 + bucket(self.gap_bounds, gap_ms) if gap_ms >= 0 else 0
        self.first_shared = cython.cast(cython.int, self.turn_bounds.shape[0]) + 1
        first_private: cython.int = self.first_shared + cython.cast(cython.int, self.use_bounds.shape[0]) + 1
        self.tail_cell = turn
        self.first_turn_cell = first_private + (2 * turn * news + new) * gaps + gap
        self.later_turn_cell = first_private + ((2 * turn + 1) * news + new) * gaps + gap
        return 0

    def _continue(self, row, seen, now):
        """Set the turn and the session of a request; returns the time since the turn before, or -1."""
        if seen == 0:
            return -1
        last: cython.int = self.ids[self.start[row] + seen - 1]
        owner: cython.int = self.owner[last]
        if self.knows_turns:
            if self.turn[row] == 1:
                return -1
        else:
            whole: cython.longlong = min(self.tokens[owner] // self.block_size, self.full[owner])
            if seen < whole or self.tokens[row] <= self.tokens[owner] or self.is_shared[last]:
                return -1
            self.turn[row] = self.turn[owner] + 1
        self.session[row] = self.session[owner]
        return now - self.arrived[owner]

    def used_ms(self, block):
        """The arrival of the request that used a block last, in ms."""
        return self.arrived[self.owner[block]]

    def use(self, block):
        """The request that began last uses a block; returns the block's cell."""
        if self.owner[block] < 0:
            self.is_later[block] = self.turn[self.row] > 1
        self.owner[block] = cython.cast(cython.int, self.row)
        self.uses[block] += 1
        place: cython.longlong = self.depth[block]
        if block >= self.prompt_blocks or (place + 1) * self.block_size > self.tokens[self.row]:
            return self.tail_cell
        if self.is_shared[block]:
            return self.first_shared + bucket(self.use_bounds, self.uses[block])
        return self.later_turn_cell if self.is_later[block] else self.first_turn_cell


def bucket(bounds, value):
    """Number of bounds that are at most a value."""
    k: cython.int = 0
    while k < bounds.shape[0] and bounds[k] <= value:
        k += 1
    return k


def cells(demand, bounds):
    """int32: position in `demand.ids` -> the cell of that use, for requests one after another."""
    row: cython.Py_ssize_t
    k: cython.Py_ssize_t
    context: Context = Context(demand.blocks, demand.blocks, demand.trace, demand)
    state: PathState = PathState(context, bounds, Recency(context))
    arrival: cython.const[cython.double][::1] = demand.arrival
    numbers = np.zeros(len(demand.ids), dtype=np.int32)
    cell: cython.int[::1] = numbers
    with cython.nogil:
        for row in range(state.full.shape[0]):
            state.begin(row, arrival[row])
            for k in range(state.start[row], state.start[row] + state.full[row]):
                cell[k] = state.use(state.ids[k])
    return numbers


EMPTY = cython.declare(cython.int, 1 << 30)  # the level of a class without evictable blocks
NEVER = cython.declare(cython.double, 1e300)


class ReuseDensity(Policy):
    """Reuse density: evicts the block with the least chance of reuse per second that it is kept, by a table learned
    before.

    Each use puts a block into a class by what the engine knows then (policies/learned.py), and the table has a
    level for each class and age: the logarithm of the greatest chance of reuse per expected second of keeping, over all
    times to keep it (the Gittins index of the class's reuse times; Gittins, J. R. Stat. Soc. B 41(2), 1979).
    reuse_table.py describes the table, reuse_training.py makes one.

    Levels never rise with age. The candidate of a class is therefore its least recent block, of one request the
    deepest, and only the candidates are compared. Ties: the least recent. The blocks of one request that have one class
    are evicted tail first. Two classes can evict a parent before its child in a flat pool, so use a leaf-first pool;
    there a parent joins its class where its last use belongs.

    A use of a pinned block counts; `release` only makes a block evictable.
    """

    def __init__(self, context: Context, table=None):
        Policy.__init__(self, context)
        table = table or default_table()
        self.follows_requests = True
        self.recency = Recency(context)
        self.state = PathState(context, table.bounds, self.recency)
        self.class_of_cell = np.array(table.class_of_cell, dtype=np.int32)
        self.level = np.array(table.levels, dtype=np.int32)
        self.age_bounds = np.array(table.ages_ms, dtype=np.float64)
        self.classes = len(table.levels)
        self.heaps = Heaps(context.blocks, self.classes)
        self.class_of = np.zeros(context.blocks, dtype=np.int32)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.level_now = np.full(self.classes, EMPTY, dtype=np.int32)
        self.until_ms = np.full(self.classes, NEVER)

    def request_started(self, row):
        return self.state.begin(row, self.context.now)

    def insert(self, block):
        self.class_of[block] = self.class_of_cell[self.state.use(block)]
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        if self.heaps.holds(block):
            self.remove(block)
        return self.insert(block)

    def release(self, block):
        self.heaps.put(self.class_of[block], block, 0.0, self.stamp[block])
        if self.heaps.first(self.class_of[block]) == block:
            self._look_up(self.class_of[block])
        return 0

    def victim(self):
        class_: cython.int
        best: cython.int = NONE
        for class_ in range(self.classes):
            if self.context.now >= self.until_ms[class_]:
                self._look_up(class_)
            if self.level_now[class_] == EMPTY or (best >= 0 and self.level_now[class_] > self.level_now[best]):
                continue
            if best < 0 or self.level_now[class_] < self.level_now[best] or self._less_recent(class_, best):
                best = class_
        return self.heaps.first(best) if best >= 0 else NONE

    def remove(self, block):
        was_first: cython.bint = self.heaps.first(self.class_of[block]) == block
        self.heaps.drop(block)
        if was_first:
            self._look_up(self.class_of[block])
        return 0

    def _less_recent(self, class_, other):
        """Whether the candidate of a class is less recent than that of another."""
        return self.stamp[self.heaps.first(class_)] < self.stamp[self.heaps.first(other)]

    def _look_up(self, class_):
        """Look up the level of a class's candidate, and the time until which it holds."""
        block: cython.int = self.heaps.first(class_)
        if block < 0:
            self.level_now[class_], self.until_ms[class_] = EMPTY, NEVER
            return 0
        used_ms: cython.double = self.state.used_ms(block)
        age: cython.double = self.context.now - used_ms
        low: cython.int = 0  # bisection: the bucket is the number of bounds that are at most the age
        high: cython.int = cython.cast(cython.int, self.age_bounds.shape[0])
        while low < high:
            middle: cython.int = (low + high) // 2
            if self.age_bounds[middle] <= age:
                low = middle + 1
            else:
                high = middle
        self.level_now[class_] = self.level[class_, low]
        has_bound: cython.bint = low < self.age_bounds.shape[0]
        self.until_ms[class_] = used_ms + self.age_bounds[low] if has_bound else NEVER
        return 0
