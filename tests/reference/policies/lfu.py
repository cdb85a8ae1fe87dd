"""LFU over a dict of counts: the least (uses, time of release) among idle blocks."""


class LFU:
    """Least frequently used, then least recently released."""

    def __init__(self, context):
        self.count = {}  # resident block -> uses
        self.released = {}  # idle block -> time of its release
        self.releases = 0

    def insert(self, block):
        self.count[block] = 1

    def use(self, block):
        self.count[block] += 1
        self.released.pop(block, None)

    def release(self, block):
        self.releases += 1
        self.released[block] = self.releases

    def victim(self):
        return min(self.released, key=lambda block: (self.count[block], self.released[block]), default=None)

    def remove(self, block):
        del self.count[block], self.released[block]
