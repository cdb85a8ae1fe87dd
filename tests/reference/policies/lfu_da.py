"""LFU with dynamic aging: number of uses + the key of the last evicted block."""


class LFUDA:
    def __init__(self, context):
        self.context = context
        self.count, self.last = {}, {}
        self.keys = {}  # evictable block -> (count + age, last request, release number)
        self.age, self.releases = 0, 0

    def insert(self, block):
        self.count[block] = 0
        self.use(block)

    def use(self, block):
        self.keys.pop(block, None)
        self.count[block] += 1
        self.last[block] = self.context.request

    def release(self, block):
        self.releases += 1
        self.keys[block] = (self.count[block] + self.age, self.last[block], self.releases)

    def victim(self):
        return min(self.keys, key=self.keys.get, default=None)

    def remove(self, block):
        self.age = self.keys.pop(block)[0]
