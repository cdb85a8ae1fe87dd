"""LMCache's chunk store in plain Python: a list of keys, least recent first, and each policy's choice of a victim.

Twin of src/kvtrace/cache/core/pool.py. Times are in ms.
"""


class Store:
    """At most `capacity` chunks; `keys` is in order of use (lru, mru), of storing (fifo) or of both (lfu)."""

    def __init__(self, capacity, policy="lru", watermark=False):
        self.capacity, self.policy, self.watermark = capacity, policy, watermark
        self.keys, self.uses = [], {}
        self.evicted = self.seconds = 0

    def lookup(self, chunks):
        hit = 0
        while hit < len(chunks) and chunks[hit] in self.keys:
            hit += 1
        self.touch(chunks[:hit])
        return hit

    def touch(self, chunks):
        """Touch the resident chunks, tail first."""
        for chunk in reversed(chunks):
            if chunk in self.keys:
                self.uses[chunk] += 1
                if self.policy != "fifo":
                    self.keys.remove(chunk)
                    self.keys.append(chunk)

    def store(self, chunks):
        """Take a place per chunk, evicting for each; then put the chunks, root first. Resident chunks are skipped."""
        taken = 0
        while taken < len(chunks) and (len(self.keys) + taken < self.capacity or self.keys):
            if len(self.keys) + taken == self.capacity:
                self.evict()
            taken += 1
        for chunk in chunks[:taken]:
            self.put(chunk)

    def store_all(self, chunks):
        """Store all missing chunks, or none; tail first."""
        new = [chunk for chunk in chunks if chunk not in self.keys]
        if len(self.keys) + len(new) <= self.capacity:
            for chunk in reversed(new):
                self.put(chunk)

    def put(self, chunk):
        if chunk not in self.keys:
            self.keys.append(chunk)
            self.uses[chunk] = 1

    def evict(self):
        self.evicted += 1
        if self.policy == "mru":
            self.keys.pop()
        elif self.policy == "lfu":
            self.keys.remove(min(self.keys, key=lambda key: self.uses[key]))  # ties: the first
        else:
            self.keys.pop(0)

    def tick(self):
        """Once a second: if 80 % are in use, evict a fifth."""
        if len(self.keys) / self.capacity >= 0.8:
            for _ in range(max(1, int(len(self.keys) * 0.2))):
                self.evict()

    def serve(self, chunks, arrival):
        if self.watermark:
            while self.seconds < arrival // 1000:
                self.seconds += 1
                self.tick()
        hit = self.lookup(chunks)
        (self.store_all if self.watermark else self.store)(chunks[hit:])
        return hit

    def end(self, chunks):
        if self.watermark:
            self.touch(chunks)


def serve(paths, arrival, capacity, policy="lru", watermark=False, kind="serial", concurrency=1, end=()):
    """(hit chunks of each request, evicted chunks) of the paths in a store, with a schedule."""
    store, live, hits = Store(capacity, policy, watermark), [], []
    for row, path in enumerate(paths):
        if kind == "concurrency" and len(live) >= concurrency:
            store.end(paths[live.pop(0)])
        if kind == "open-loop":
            for other in sorted(live, key=lambda other: (end[other], other)):
                if end[other] <= arrival[row]:
                    live.remove(other)
                    store.end(paths[other])
        hits.append(store.serve(path, arrival[row]))
        live.append(row)
        if kind == "serial":
            store.end(paths[live.pop()])
    return hits, store.evicted
