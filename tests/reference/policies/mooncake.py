"""Mooncake Store's passes, with the default watermark (90 %) and share (5 %): the first deadline first, roots first."""

from math import ceil


class Mooncake:
    def __init__(self, context, lease_ms=10_000.0):
        self.context, self.lease_ms = context, lease_ms
        self.deadline, self.uses = {}, 0  # block -> (deadline, number of its last use); resident blocks
        self.evictable, self.due = set(), 0

    def insert(self, block):
        self.deadline[block] = (self.context.now, self._next())

    def use(self, block):
        until = max(self.deadline[block][0], self.context.now + self.lease_ms)
        self.deadline[block] = (until, self._next())
        self.evictable.discard(block)

    def _next(self):
        self.uses += 1
        return self.uses

    def release(self, block):
        self.evictable.add(block)

    def victim(self):
        return min(self.evictable, key=self.deadline.get, default=None)

    def remove(self, block):
        self.evictable.remove(block)
        del self.deadline[block]

    def expired(self):
        block, used = self.victim(), len(self.deadline) / max(1, self.context.capacity)
        if self.due == 0 and used > 0.9:
            self.due = ceil(len(self.deadline) * max(0.05, used - 0.9 + 0.05))
        if self.due == 0 or block is None or self.deadline[block][0] > self.context.now:
            self.due = 0
            return None
        self.due -= 1
        return block
