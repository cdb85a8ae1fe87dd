"""Time to live: least recent use first; a block expires when its last use is older than the limit."""


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
        return min(self.evictable, key=self.last_use.get, default=None)  # ties: the first released

    def remove(self, block):
        if block in self.evictable:
            self.evictable.remove(block)

    def expired(self):
        block = self.victim()
        is_expired = block is not None and self.context.now - self.last_use[block] > self.limit_ms
        return block if is_expired else None
