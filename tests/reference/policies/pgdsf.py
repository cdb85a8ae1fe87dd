"""PGDSF: clock + frequency x cost per token, in integers; the clock is the greatest priority evicted so far."""

from .depth import depths


class PGDSF:
    def __init__(self, context, even_tokens=30_000):
        self.context, self.depth, self.even = context, depths(context.demand), even_tokens
        self.frequency, self.keys, self.evictable = {}, {}, set()
        self.clock = 0

    def insert(self, block):
        self.frequency[block] = 0
        self.use(block)

    def use(self, block):
        self.evictable.discard(block)
        self.frequency[block] += 1
        size = self.context.trace.block_size
        first, after = self.depth[block] * size, (self.depth[block] + 1) * size
        cost = (after - first) * 2 * self.even + (after**2 - first**2)  # linear and quadratic FLOPs
        priority = self.clock + self.frequency[block] * cost // size
        self.keys[block] = (priority, self.context.request, -self.depth[block])

    def release(self, block):
        self.evictable.add(block)

    def victim(self):
        return min(self.evictable, key=self.keys.get, default=None)

    def remove(self, block):
        self.evictable.discard(block)
        self.clock = max(self.clock, self.keys[block][0])
