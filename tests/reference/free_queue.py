"""vLLM's block pool over lists and dicts: what the compiled one (cache/core/free_queue.py) means.

Free physical blocks wait in one queue, those that still hold a hash among them; a new block is the queue's first, and
what it held is forgotten. A block that is computed twice has two physical copies under one hash.
"""

from dataclasses import dataclass, field


@dataclass
class Request:
    """What one request asks for: the hashed blocks of its prompt, and what its output adds."""

    path: list
    limit: int  # at most so many of them may hit
    tail: int = 0  # 1 when a block without a hash follows
    grown: list = field(default_factory=list)  # hashed blocks that the output adds
    grown_tail: int = 0


class FreeQueue:
    def __init__(self, capacity, unhashed_first=True, newest_copy=False):
        self.queue = list(range(capacity))  # free physical blocks, the next to be taken first
        self.copies = {}  # block -> its physical copies that can be found, the first registered first
        self.holds = {}  # physical block -> the block whose hash it has
        self.held = {}  # live row -> its physical blocks, the prompt's first one first
        self.unhashed_first, self.newest_copy = unhashed_first, newest_copy
        self.evictions = 0

    def is_free(self, physical):
        return not any(physical in blocks for blocks in self.held.values())

    def take(self, row):
        """The first free block, for a request; what it held is cached no longer."""
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
        """Hit blocks, or None where there is no room."""
        found = []
        for block in request.path[: request.limit]:
            if not self.copies.get(block):
                break
            found.append(self.copies[block][0])
        new = len(request.path) - len(found) + request.tail
        if new + sum(self.is_free(physical) for physical in found) > len(self.queue):
            return None
        self.queue = [physical for physical in self.queue if physical not in found]
        self.held[row] = list(found)
        taken = [self.take(row) for _ in range(new)]
        for physical, block in zip(taken, request.path[len(found) :], strict=False):  # the tail has no hash
            self.register(physical, block)
        return len(found)

    def grow(self, row, request):
        """False where there is no room."""
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
    """(hits of each request, evicted blocks, requests freed early); with `end`, request r ends at end[r]."""
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
