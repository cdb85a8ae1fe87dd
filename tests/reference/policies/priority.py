"""Lowest priority first, then least recent; 35 for requests without a priority and after the duration."""

from .depth import depths


class Priority:
    def __init__(self, context, duration_ms=float("inf")):
        self.context, self.duration_ms, self.depth = context, duration_ms, depths(context.demand)
        self.priority = [35 if value is None or value != value else value for value in context.trace.extra["priority"]]
        self.used = {}  # block -> the last request that used it, and its time
        self.evictable = set()

    def insert(self, block):
        self.used[block] = (self.context.request, self.context.now)

    def use(self, block):
        self.evictable.discard(block)
        self.insert(block)

    def release(self, block):
        self.evictable.add(block)

    def victim(self):
        def key(block):
            request, time = self.used[block]
            over = time + self.duration_ms <= self.context.now
            return 35 if over else self.priority[request], request, -self.depth[block]

        return min(self.evictable, key=key, default=None)

    def remove(self, block):
        self.evictable.discard(block)
