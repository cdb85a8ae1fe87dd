"""A forest that grows by attachment, the slow way: block by block, with a list of all uses as the recency list."""

from tests.reference.attach import FULL_KINDS, kind_of

GAIN, MOST, STEP, TAIL, CLOSE, GOOD = 0.3, 1.0, 0.1, 3.0, 0.3, 1.0
SLACK, SLACK_TOKENS, QUICK = 0.0025, 0.001, (1, 4, 1, 0)
FAR, ALL = 1.5, 2.0


class Block:
    """A block of the forest, with the state of its last use."""

    def __init__(self, number, parent, depth, tokens):
        self.number, self.parent, self.depth, self.tokens = number, parent, depth, tokens
        self.uses, self.kind, self.row, self.session = 0, None, None, None


class Growth:
    """The forest that grows by attachment."""

    def __init__(self, deepest, horizon, block_size, capacities, correction, counts_partial, effort, wide, grace):
        self.deepest, self.horizon, self.block_size, self.counts_partial = deepest, horizon, block_size, counts_partial
        self.capacities, self.correction = capacities, correction
        self.full, self.wide = effort, wide
        self.blocks, self.row, self.sessions = [], 0, 0
        self.lacking, self.lacking_tokens = [0.0] * len(capacities), 0.0
        self.asked, self.asked_tokens = grace  # blocks; of last blocks

    def grow(self, records):
        """The rows of one window: [(path, tail, session, parent, number of the record)]."""
        waiting, rows = list(enumerate(records)), []
        while waiting:
            self.lookahead, self.tries, self.probes, self.reach = self.effort()
            found = []
            for place, record in waiting[: self.lookahead]:
                best = self.search(record)
                error = 0 if record[0] == 0 else best[1] / record[0] if best else 1e300
                found.append((error, best, place, record))
                if min(one[0] for one in found) <= GOOD:
                    break
            _, best, place, record = min(found, key=lambda one: one[0])
            waiting = [one for one in waiting if one[0] != place]
            rows.append((*self.add(record, best[2] if best else None), place))
        return rows

    def effort(self):
        """How wide a search is: by how much of the hits and of the tokens is lacking, in what may be lacking."""
        worst = abs(self.lacking_tokens) / SLACK_TOKENS / self.asked_tokens if self.lacking_tokens else 0
        for less in self.lacking:
            if abs(less) / SLACK > worst * self.asked:
                worst = abs(less) / SLACK / self.asked if self.asked else float("inf")
        return self.wide if worst > FAR else self.full if worst > 1 else QUICK

    def add(self, record, best):
        """One row: its path, tail, session and parent."""
        hits, _, _, length, *_, tail, continues = record
        if hits:
            got = self.hits_of(best)
            for j, recorded in enumerate(self.recorded(record)):
                self.lacking[j] += recorded - got[j]
        session, parent = self.sessions, -1
        if best and continues:
            session, parent = best.session, best.row
        self.sessions = max(self.sessions, session + 1)
        path = path_to(best)
        while len(path) < length:
            tokens = tail if len(path) == length - 1 else self.block_size
            block = Block(len(self.blocks), path[-1] if path else None, len(path) + 1, tokens)
            self.blocks.append(block)
            path.append(block)
        for block in path:
            block.uses += 1
            block.kind = kind_of(length - block.depth, block.uses)
            if block.tokens < self.block_size:
                block.kind = FULL_KINDS + min(block.uses, 3) - 1
            block.row, block.session = self.row, session
        self.row += 1
        self.lacking_tokens += tail - path[-1].tokens
        self.asked_tokens += tail
        self.asked += length
        return [block.number for block in path], path[-1].tokens, session, parent

    # -- the recency list ----------------------------------------------------------------------------------------

    def distance(self, row):
        """The number of blocks that later rows used last."""
        return sum(
            block.row > row and (self.counts_partial or block.tokens == self.block_size) and self.is_known(block)
            for block in self.blocks
        )

    def is_known(self, block):
        """Whether a block is within the horizon."""
        later = [
            other for other in self.blocks
            if other.row > block.row and (self.counts_partial or other.tokens == self.block_size)
        ]  # fmt: skip
        return len(later) <= self.horizon

    def hits_of(self, block):
        """Hits at each capacity of a path that shares the blocks up to one."""
        hits = [0.0] * len(self.capacities)
        path = path_to(block)
        rows = sorted({one.row for one in path}, key=lambda row: row)  # deepest segment first
        for row in rows:
            blocks, distance = sum(one.row == row for one in path), self.distance(row)
            for j, capacity in enumerate(self.capacities):
                hits[j] += max(0, min(capacity - distance, blocks))
        return hits

    # -- the choice ----------------------------------------------------------------------------------------------

    def recorded(self, record):
        """The hits that a record asks for."""
        hits, _, _, _, distance, fork, fork_distance, *_ = record
        return [
            (min(max(capacity - distance, 0), hits - fork) + min(max(capacity - fork_distance, 0), fork)) * factor
            for capacity, factor in zip(self.capacities, self.correction, strict=True)
        ]

    def search(self, record):
        """(cost, error, block) of the best block, or None."""
        hits, shallow, deep, length, distance, _, _, kind, tail, continues = record
        recorded, most, tokens = self.recorded(record), MOST * hits, tail + GAIN * self.lacking_tokens
        wanted = [one + min(max(GAIN * less, -most), most) for one, less in zip(recorded, self.lacking, strict=True)]
        if hits == length:
            shallow = deep = hits
        else:
            more = min(int(self.reach * hits) if continues else 0, length - 1 - hits)
            shallow, deep = min(shallow, max(hits - more, 1)), min(max(deep, hits + more), self.deepest, length - 1)
            kind = kind % FULL_KINDS
        first = next((row for row in range(self.row) if self.distance(row) <= distance), self.row)
        for depth in range(hits, 0, -1):
            best, tried = None, 0
            kinds = range(FULL_KINDS) if kind < FULL_KINDS else range(FULL_KINDS, FULL_KINDS + 3)
            for other in sorted(kinds, key=lambda other: (steps(kind, other), other)):
                penalty = steps(kind, other) * (STEP * hits)
                if best and (best[0] <= penalty or tried >= self.tries):
                    break
                for place in sorted(range(shallow, deep + 1), key=lambda place: (abs(place - depth), -place)):
                    near = self.near(place, other, first)
                    for block in near:
                        got, cost, error = self.hits_of(block), penalty, penalty
                        if kind >= FULL_KINDS:
                            cost += abs((tokens - block.tokens) / self.block_size) * TAIL * hits
                        for j in range(len(got)):
                            cost += abs(wanted[j] - got[j])
                            error += abs(recorded[j] - got[j])
                        cost += ALL * abs(wanted[-1] - got[-1])
                        if best is None or cost < best[0]:
                            best = cost, error, block
                    tried += len(near)
                    if near and best and (best[1] <= CLOSE * hits or tried >= self.tries):
                        break
            if best:
                return best
            kind, shallow, deep = kind % FULL_KINDS, depth - 1, depth - 1
        return None

    def near(self, depth, kind, row):
        """The blocks of a depth and kind nearest to a row in the recency list: later ones, then earlier ones."""
        fitting = [one for one in self.blocks if (one.depth, one.kind) == (depth, kind) and self.is_known(one)]
        fitting.sort(key=lambda one: (one.row, one.depth))
        later = [one for one in fitting if one.row >= row]
        earlier = [one for one in fitting if one.row < row]
        return later[: self.probes] + earlier[::-1][: self.probes]


def path_to(block):
    """The blocks from the root to this one."""
    return [*path_to(block.parent), block] if block else []


def steps(kind, other):
    """The distance between two kinds."""
    return abs(kind // 3 - other // 3) + 3 * abs(kind % 3 - other % 3)
