"""vLLM's hybrid cache over lists and dicts: the definition of the compiled one (cache/core/grouped_cache.py).

A model has groups of layers, each with a table of physical blocks for every request; all share one pool. A request
resumes at the longest prefix at which every group can: full attention needs all blocks, a sliding window the blocks
of the last window, a chunked group those of the present chunk, a state one checkpoint at the boundary.

With a drafter that predicts `drafts` tokens, tables of attention reach that many tokens further, and those of states
have as many blocks more, from the first chunk on.
"""

from dataclasses import dataclass, field
from math import lcm

NULL = None  # a place of a table whose block is not kept


@dataclass(frozen=True)
class Group:
    kind: str  # full, window, chunk or state
    size: int  # tokens of a block
    window: int = 0


@dataclass
class Request:
    path: list  # the ids of the full base blocks of prompt and output, in order
    prompt: int  # tokens
    more: int = 0  # tokens that are computed after the prompt
    computed: int = 0
    junction: int = 0  # where a prefix that others share ends, if no checkpoint is there
    hits: int = -1
    cached: dict = field(default_factory=dict)  # group -> leading blocks that were considered for the cache
    tables: list = field(default_factory=list)
    scratch: dict = field(default_factory=dict)  # group of states -> the blocks in which they run ahead
    retired: int = 0  # states
    last_state: int = -1  # place of the state that the present one was computed from
    grows: bool = False  # a state block was taken


class Groups:
    def __init__(
        self, capacity, groups, base, retention=0, step_tokens=8192, checkpoint=False, junctions=True, drafts=0
    ):
        self.groups, self.base, self.retention, self.step_tokens = groups, base, retention, step_tokens
        self.align = lcm(*(group.size for group in groups))
        self.checkpoint, self.junctions, self.drafts = checkpoint, junctions, drafts
        self.queue = list(range(capacity))
        self.listed_states = set()  # keys of states, since a scheduler cleared them
        self.pins = [0] * capacity
        self.holds = {}  # physical block -> (group, id)
        self.copies = {}  # (group, id) -> physical blocks, in order of registration
        # groups of the same form are looked up together; full attention comes first
        self.specs = [[g for g, other in enumerate(groups) if other == spec] for spec in dict.fromkeys(groups)]
        self.specs.sort(key=lambda members: groups[members[0]].kind != "full")

    # ---- the pool

    def take(self):
        physical = self.queue.pop(0)
        if physical in self.holds:
            self.copies[self.holds.pop(physical)].remove(physical)
        self.pins[physical] = 1
        return physical

    def free(self, blocks):
        blocks = [physical for physical in blocks if physical is not NULL]
        for physical in blocks:
            self.pins[physical] -= 1
        idle = [physical for physical in blocks if self.pins[physical] == 0]
        blank = [physical for physical in idle if physical not in self.holds]
        self.queue = blank + self.queue + [physical for physical in idle if physical in self.holds]

    def touch(self, physical):
        if self.pins[physical] == 0:
            self.queue.remove(physical)
        self.pins[physical] += 1

    # ---- lookup

    def found(self, request, members, place):
        """The physical blocks of a place in all groups of a form, or None if one is missing."""
        size = self.groups[members[0]].size
        block = request.path[(place + 1) * size // self.base - 1]
        copies = [self.copies.get((g, block)) for g in members]
        return [blocks[0] for blocks in copies] if all(copies) else None

    def prefix(self, request, members, most):
        """(place -> physical blocks, tokens) of the longest prefix, of `most` tokens, at which a form resumes."""
        group = self.groups[members[0]]
        places = most // group.size
        none = [NULL] * len(members)
        if group.kind == "full":
            table = []
            for place in range(places):
                blocks = self.found(request, members, place)
                if blocks is None:
                    break
                table.append(blocks)
            tokens = len(table) * group.size // self.align * self.align
            return table[: tokens // group.size], tokens
        if group.kind == "chunk":
            start = most // group.window * group.window // group.size
            table = [none] * start
            for place in range(start, places):
                blocks = self.found(request, members, place)
                if blocks is None:
                    break
                table.append(blocks)
            return table, len(table) * group.size
        if group.kind == "state":
            for place in range(places - 1, -1, -1):
                blocks = self.found(request, members, place)
                if blocks and (place + 1) * group.size % self.align == 0:
                    return [none] * place + [blocks], (place + 1) * group.size
            return [], 0
        need = -(-(group.window - 1) // group.size)
        table, run = [none] * places, 0
        for place in range(places - 1, -1, -1):
            blocks = self.found(request, members, place)
            if blocks is None:
                run = 0
                continue
            if run == 0 and (place + 1) * group.size % self.align:
                continue
            table[place] = blocks
            run += 1
            if run >= need:
                table = table[: place + run]
                return table, len(table) * group.size
        table = table[:run]
        while len(table) * group.size % self.align:
            table.pop()
        return table, len(table) * group.size

    def look_up(self, request, most=None):
        """(group -> blocks to start with, hit tokens); sets the junction."""
        hit = most = request.prompt - 1 if most is None else most
        longest, tables = 0, {}
        full = {}
        while True:
            current = hit
            for form, members in enumerate(self.specs):
                if form in full:
                    current = min(current, full[form])
                    continue
                table, current = self.prefix(request, members, current)
                tables[form] = table
                if self.groups[members[0]].kind == "full":
                    full[form] = current
                longest = max(longest, current)
            if current >= hit:
                break
            hit = current
            if len(self.specs) == 2 and 0 in full:
                break
        if len(self.groups) == 1:
            hit = longest = current
        request.junction = longest if longest > hit and self.junctions else 0
        blocks = [[] for _ in self.groups]
        for form, members in enumerate(self.specs):
            size = self.groups[members[0]].size
            table = tables[form][: hit // size] if form in full else tables[form]
            for i, g in enumerate(members):
                blocks[g] = [place[i] for place in table]
        assert most < 0 or hit <= most
        return blocks, hit

    # ---- a chunk of a request

    def skipped(self, group, tokens):
        """The leading places that are not needed after so many tokens."""
        if group.kind == "window":
            return max(0, tokens - group.window + 1) // group.size
        if group.kind == "chunk":
            return tokens // group.window * group.window // group.size
        return max(0, tokens - 1) // group.size if group.kind == "state" else 0

    def checkpoint_place(self, request, group, start, end):
        """The place where a state is saved within a chunk, or -1."""
        position = (end - 1) // self.align * self.align
        place = -(-end // group.size) - 2
        goal = max(request.prompt, self.known(request) - 1) if self.retention == 0 else 0
        table = request.tables[self.groups.index(group)] if request.tables else []
        valid = self.valid(start, end, position, group.size)
        if self.checkpoint and end >= goal and valid and place >= 0 and (place >= len(table) or table[place] is NULL):
            return place
        return -1

    def valid(self, start, end, position, size):
        """Whether a backend can save the state at a position within the chunk [start, end)."""
        return (
            start % self.base == 0
            and -(-end // size) - 2 > (start - 1) // size
            and start + self.base <= position
            and start < position < end
            and (position - start) % size == 0
        )

    def known(self, request):
        """Tokens of prompt and output that are known."""
        return max(request.prompt, request.computed + (request.computed >= request.prompt))

    def missing(self, request, blocks, start, end):
        """Blocks to take for the chunk [start, end), with the idle hits among `blocks`."""
        need = 0
        for g, group in enumerate(self.groups):
            places, table = self.places(group, end), request.tables[g] if request.tables else []
            hits = blocks[g] if blocks else []
            new = places - max(len(hits) + len(table), self.skipped(group, start) if not table else 0)
            if group.kind == "state":
                new = places - len(hits) - len(table)
                checkpoint = self.checkpoint_place(request, group, start, end) >= 0
                new = min(new, 1 + checkpoint) if new > 0 else new
                new += 0 if request.scratch else self.drafts
            need += max(new, 0) + sum(self.pins[b] == 0 for b in hits if b is not NULL)
        return need

    def places(self, group, end):
        """The places of a table up to a token, with those for the tokens of a drafter."""
        return -(-(end + (0 if group.kind == "state" else self.drafts)) // group.size)

    def retire(self, request, tokens):
        """Free what is not needed after so many tokens."""
        for g, group in enumerate(self.groups):
            if not request.tables:
                return
            table = request.tables[g]
            last = min(self.skipped(group, tokens), len(table))
            self.free(reversed(table[:last]))
            table[:last] = [NULL] * last
            if group.kind == "state" and 0 <= request.last_state < -(-tokens // group.size) - 1:
                self.free([table[request.last_state]])
                table[request.last_state] = NULL

    def allocate(self, request, end, blocks=None, hit=0):
        """Take the blocks of a chunk and publish what it fills; False, with nothing taken, if there is no room."""
        start = request.computed + hit
        self.retire(request, start)
        if self.missing(request, blocks, start, end) > len(self.queue):
            return False
        if not request.tables:
            self.start(request, blocks, hit)
        self.extend(request, start, end)
        request.computed = end
        self.publish(request, end)
        return True

    def start(self, request, blocks, hit):
        """Hold the blocks of a hit that are still needed."""
        request.tables = [[] for _ in self.groups]
        if hit:
            for g, group in enumerate(self.groups):
                skipped = self.skipped(group, hit)
                kept = blocks[g][skipped:]
                for physical in kept:
                    if physical is not NULL:
                        self.touch(physical)
                request.tables[g] = [NULL] * skipped + kept
                request.cached[g] = len(request.tables[g])

    def extend(self, request, start, end):
        """Take the blocks of the chunk [start, end)."""
        checkpoints = {
            g: self.checkpoint_place(request, group, start, end)
            for g, group in enumerate(self.groups)
            if group.kind == "state"
        }
        for g, group in enumerate(self.groups):
            table, places = request.tables[g], self.places(group, end)
            if group.kind != "state":
                table += [self.take() for _ in range(places - len(table))]
                continue
            if g not in request.scratch:
                request.scratch[g] = [self.take() for _ in range(self.drafts)]
            checkpoint = checkpoints[g] >= 0
            if places <= len(table) and not checkpoint:
                request.grows = True
                continue
            if request.grows or table:
                request.last_state = len(table) - 1
            table += [NULL] * (places - 1 - checkpoint - len(table))
            table += [self.take() for _ in range(places - len(table))]
            request.grows = True

    def publish(self, request, tokens):
        """Give blocks that `tokens` tokens fill their hashes, where a later request can resume."""
        if len(self.groups) > 1:
            tokens = tokens // self.align * self.align
        for g, group in enumerate(self.groups):
            full = min(tokens, len(request.path) * self.base) // group.size
            for place in range(request.cached.get(g, 0), full):
                physical = request.tables[g][place]
                if physical is not NULL and self.is_kept(request, group, place):
                    key = (g, request.path[(place + 1) * group.size // self.base - 1])
                    assert physical not in self.holds
                    self.holds[physical] = key
                    self.copies.setdefault(key, []).append(physical)
                    if group.kind == "state":
                        self.listed_states.add(key)
            request.cached[g] = max(full, request.cached.get(g, 0))

    def is_kept(self, request, group, place):
        """Whether a checkpoint needs the block of a place."""
        if group.kind in ("full", "chunk"):
            return True
        need = -(-(group.window - 1) // group.size) if group.kind == "window" else 1
        if self.retention is None or self.retention > 0:
            if self.retention is None and group.kind == "state":
                return True
            segment = (self.align if self.retention is None else self.retention) // group.size
            if need >= segment or place % segment >= segment - need:
                return True
            if self.retention is None:
                return False
        boundaries = [request.prompt - 1] + [request.junction] * (request.junction > 0)
        ends = [boundary // self.align * self.align // group.size for boundary in boundaries]
        return any(end - need <= place < end for end in ends)

    # ---- the verbs of an engine

    def chunk_end(self, request, start):
        """Where the chunk of a prompt that begins at a token ends."""
        return self.aligned_end(request, start, min(request.prompt, start + self.step_tokens), request.prompt)

    def aligned_end(self, request, start, end, known):
        """Where a chunk that may go on to `end` must end, with `known` tokens of prompt and output known."""
        goal, size = max(request.prompt, known - 1), self.align
        if start >= goal or all(group.kind != "state" for group in self.groups):
            return end
        last = (known - 1) // size * size
        internal = self.checkpoint and end >= goal and self.valid(start, end, (goal - 1) // size * size, size)
        if end < goal:
            aligned = end // size * size
            if aligned > start or size <= self.step_tokens:
                end = aligned
        stops = [
            0 if start % size == 0 or internal else (start // size + 1) * size,
            0 if internal else last,
            start + (request.junction - start) // size * size if start < request.junction < end else 0,
        ]
        return max(start, min([stop for stop in stops if start < stop < end], default=end))

    def admit(self, request):
        """Hit tokens, or None if there is no room; then the chunks so far are kept."""
        blocks, hit = None, 0
        if not request.tables:
            request.cached = {}
            blocks, hit = self.look_up(request)
            request.hits = hit
        while request.computed + hit < request.prompt:
            end = self.chunk_end(request, request.computed + hit)
            if not self.allocate(request, end, blocks, hit):
                return None
            blocks, hit = None, 0
        return request.hits

    def grow(self, request):
        while request.computed < request.prompt + request.more:
            if not self.allocate(request, request.computed + 1):
                return False
        return True

    def finish(self, request):
        for g, table in enumerate(request.tables):
            self.free(reversed(table + request.scratch.get(g, [])))
        request.tables, request.scratch = [], {}


def serve(requests, groups, capacity, kind="serial", arrival=None, concurrency=1, end=None, grow=True):
    """(hit tokens of each request, early frees); `groups` are keyword arguments of Groups but the capacity."""
    cache, live, hits, early = Groups(capacity, **groups), [], [], 0

    def finish(row):
        live.remove(row)
        cache.finish(requests[row])

    for row, request in enumerate(requests):
        if kind == "concurrency":
            while len(live) >= concurrency:
                finish(min(live))
        elif kind == "open-loop":
            for ended in sorted(live, key=lambda row: (end[row], row)):
                if end[ended] <= arrival[row]:
                    finish(ended)
        for verb in (cache.admit, cache.grow) if grow else (cache.admit,):
            while (result := verb(request)) is None or result is False:
                finish(min(live))
                early += 1
            if verb == cache.admit:
                hits.append(result)
        live.append(row)
        if kind == "serial":
            finish(row)
    for row in sorted(live):
        finish(row)
    assert len(cache.queue) == capacity
    return hits, early
