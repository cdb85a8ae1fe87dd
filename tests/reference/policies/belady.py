"""The offline optimum: farthest next use first; among blocks with the same next use, the deepest first."""

from .depth import depths


class Belady:
    def __init__(self, context):
        self.context, self.depth = context, depths(context.demand)
        demand = context.demand
        self.paths = [
            set(demand.ids[start:][:full].tolist()) for start, full in zip(demand.start, demand.full, strict=True)
        ]
        self.evictable = []  # in order of release
        self.last = {}  # block -> the last request that used it

    def insert(self, block):
        self.last[block] = self.context.request

    def use(self, block):
        self.remove(block)
        self.insert(block)

    def release(self, block):
        self.evictable.append(block)

    def victim(self):
        def key(block):
            later = range(self.last[block] + 1, len(self.paths))
            due = next((row for row in later if block in self.paths[row]), len(self.paths))
            return due, self.depth[block] if due < len(self.paths) else 0

        return max(self.evictable, key=key, default=None)  # ties: the first released

    def remove(self, block):
        if block in self.evictable:
            self.evictable.remove(block)
