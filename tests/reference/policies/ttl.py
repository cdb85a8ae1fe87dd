"""Time to live: the least recent use first, and gone when it is more than the limit ago."""


class TTL:
    def __init__(self, context, limit_ms):
        self.context, self.limit_ms = context, limit_ms
        self.last_use = {}
        self.evictable = []  # in order of release

    def insert(self, block):
        self.last_use[block] = self.context.now

    def use(self, block):
        self.last_use[block] = self.context.now
        self.remove(block)

    def release(self, block):
        self.evictable.append(block)

    def victim(self):
        return min(self.evictable, key=self.last_use.get, default=None)  # the first of equals

    def remove(self, block):
        if block in self.evictable:
            self.evictable.remove(block)

    def expired(self):
        block = self.victim()
        over = block is not None and self.context.now - self.last_use[block] > self.limit_ms
        return block if over else None
