"""vLLM's block pool over lists and dicts: the definition of the compiled one (cache/core/blocks.py).

Free physical blocks, including those that still have a hash, are in one queue. An allocation takes the first of them
and drops its hash. A block that is computed twice has two physical copies under one hash.
"""

from dataclasses import dataclass, field


@dataclass
class Request:
    """The demand of one request: the hashed blocks of its prompt, and the blocks of its output."""

    path: list
    limit: int  # maximum number of them that may hit
    tail: int = 0  # blocks without a hash that follow: a partial one, and those of a drafter's tokens
    grown: list = field(default_factory=list)  # hashed blocks that the output adds
    grown_tail: int = 0


class FreeQueue:
    def __init__(self, capacity, unhashed_first=True, newest_copy=False, drops_last=False):
        self.drops_last = drops_last  # the last block of a hit is computed again, for a drafter
        self.queue = list(range(capacity))  # free physical blocks, the next to take first
        self.copies = {}  # block -> its physical copies that lookups can find, in order of registration
        self.holds = {}  # physical block -> the block that it caches
        self.held = {}  # live row -> its physical blocks, in order
        self.unhashed_first, self.newest_copy = unhashed_first, newest_copy
        self.evictions = 0

    def is_free(self, physical):
        return not any(physical in blocks for blocks in self.held.values())

    def take(self, row):
        """Take the first free block for a request and drop its cached content."""
        physical = self.queue.pop(0)
        if physical in self.holds:
            self.evictions += 1
            block = self.holds.pop(physical)
            self.copies[block] = [copy for copy in self.copies.get(block, []) if copy != physical]
        self.held[row].append(physical)
        return physical

    def register(self, physical, block):
        self.holds[physical] = block
        self.copies[block] = [physical] if self.newest_copy else [*self.copies.get(block, []), physical]

    def admit(self, row, request):
        """Hit blocks, or None if there is no room."""
        reused = []
        for block in request.path[: request.limit]:
            if not self.copies.get(block):
                break
            reused.append(self.copies[block][0])
        if self.drops_last:
            reused = reused[:-1]
        new = len(request.path) - len(reused) + request.tail
        if new + sum(self.is_free(physical) for physical in reused) > len(self.queue):
            return None
        self.queue = [physical for physical in self.queue if physical not in reused]
        self.held[row] = list(reused)
        taken = [self.take(row) for _ in range(new)]
        for physical, block in zip(taken, request.path[len(reused) :], strict=False):  # the tail has no hash
            self.register(physical, block)
        return len(reused)

    def grow(self, row, request):
        """False if there is no room."""
        new = len(request.grown) + request.grown_tail - request.tail
        if new > len(self.queue):
            return False
        for _ in range(new):
            self.take(row)
        for physical, block in zip(self.held[row][len(request.path) :], request.grown, strict=False):
            self.register(physical, block)
        return True

    def finish(self, row):
        freed = [physical for physical in reversed(self.held.pop(row)) if self.is_free(physical)]
        first = [physical for physical in freed if self.unhashed_first and physical not in self.holds]
        self.queue = first + self.queue + [physical for physical in freed if physical not in first]


def serve(requests, capacity, grows=False, concurrency=1, arrival=None, end=None, **options):
    """(hits of each request, evicted blocks, requests freed early). With `end`, request r ends at end[r]."""
    cache, live, hits, early = FreeQueue(capacity, **options), [], [], 0

    def finish(row):
        live.remove(row)
        cache.finish(row)

    for row, request in enumerate(requests):
        if end is None:
            while len(live) >= concurrency:
                finish(live[0])
        else:
            for ended in sorted(live, key=lambda row: (end[row], row)):
                if end[ended] <= arrival[row]:
                    finish(ended)
        hit = cache.admit(row, request)
        while hit is None:
            finish(live[0])
            early += 1
            hit = cache.admit(row, request)
        hits.append(hit)
        while grows and not cache.grow(row, request):
            finish(live[0])
            early += 1
        live.append(row)
    return hits, cache.evictions, early
