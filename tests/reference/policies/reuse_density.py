"""Reuse density: the least chance of reuse per second first, by a table; every feature by its definition."""

from bisect import bisect_right

from kvtrace.cache.structures.reuse_table import default_table

from .depth import depths


class ReuseDensity:
    def __init__(self, context, table=None):
        self.context, self.table = context, table or default_table()
        self.depth = depths(context.demand)
        self.state = PathState(context, self.table.bounds)
        self.last, self.evictable = {}, set()  # block -> (class, request, time) of its last use

    def request_started(self, row):
        self.state.begin(row, self.context.now)

    def insert(self, block):
        one = self.table.class_of_cell[self.state.use(block)]
        self.last[block] = one, self.context.order, self.context.now

    def use(self, block):
        self.evictable.discard(block)
        self.insert(block)

    def release(self, block):
        self.evictable.add(block)

    def recency(self, block):
        return self.last[block][1], -self.depth[block]

    def level(self, block):
        one, _, used_ms = self.last[block]
        return self.table.levels[one][bisect_right(self.table.ages_ms, self.context.now - used_ms)]

    def victim(self):
        candidates = {}  # class -> its least recent block
        for block in sorted(self.evictable, key=self.recency):
            candidates.setdefault(self.last[block][0], block)
        return min(candidates.values(), key=lambda block: (self.level(block), self.recency(block)), default=None)

    def remove(self, block):
        self.evictable.discard(block)


class PathState:
    """What an engine knows about the blocks of a request; see src/kvtrace/cache/policies/learned.py."""

    def __init__(self, context, bounds):
        self.demand, self.bounds = context.demand, bounds
        self.trace, self.depth = context.demand.trace, depths(context.demand)
        self.requests = {}  # row -> (turn, first request of its session, time)
        self.users = {}  # block -> the requests that used it

    def path(self, row):
        return self.demand.ids[self.demand.start[row] :][: self.demand.full[row]].tolist()

    def begin(self, row, now):
        self.row, known = row, []
        for block in self.path(row):
            if block not in self.users:
                break
            known.append(block)
        self.new = self.demand.full[row] - len(known)
        turn, before = self.known_turn(row), None
        if known and turn != 1:
            owner = self.users[known[-1]][-1]
            if turn is not None or self.continues(row, owner, known):
                before, turn = owner, turn or self.requests[owner][0] + 1
        session = row if before is None else self.requests[before][1]
        self.gap_ms = None if before is None else now - self.requests[before][2]
        self.requests[row] = turn or 1, session, now

    def known_turn(self, row):
        """The turn that the trace states, at most 10; None if it states none."""
        trace = self.trace
        if "turn" in trace.extra:
            turn = trace.extra["turn"][row]
            return 1 if turn is None or turn != turn else min(int(turn), 10)
        if trace.parent is None:
            return None
        return 1 if trace.parent[row] < 0 else min(self.known_turn(trace.parent[row]) + 1, 10)

    def continues(self, row, owner, known):
        whole = min(self.trace.input_length[owner] // self.trace.block_size, self.demand.full[owner])
        longer = self.trace.input_length[row] > self.trace.input_length[owner]
        return len(known) >= whole and longer and not self.is_shared(known[-1], but=row)

    def is_shared(self, block, but=None):
        return len({self.requests[row][1] for row in self.users[block] if row != but}) > 1

    def use(self, block):
        users = self.users.setdefault(block, [])
        users.append(self.row)
        turn = bisect_right(self.bounds.turns, self.requests[self.row][0])
        size = self.trace.block_size
        is_output = block >= self.trace.distinct
        if is_output or (self.depth[block] + 1) * size > self.trace.input_length[self.row]:
            return turn
        if self.is_shared(block):
            return self.bounds.tails + bisect_right(self.bounds.uses, len(users))
        later = self.requests[users[0]][0] > 1
        new = bisect_right(self.bounds.new_blocks, self.new)
        gap = 0 if self.gap_ms is None else 1 + bisect_right(self.bounds.gaps_ms, self.gap_ms)
        places = ((turn * 2 + later) * (len(self.bounds.new_blocks) + 1) + new) * (len(self.bounds.gaps_ms) + 2) + gap
        return self.bounds.tails + self.bounds.shared + places
