"""Two eviction orders of your own: `kvtrace simulate TRACE --policy my_policies:Random` finds them where it runs."""

import random


class Random:
    """Any evictable block, drawn with a seed: what an order is worth shows beside it."""

    def __init__(self, context):
        self.rng = random.Random(7)
        self.blocks, self.place = [], {}  # the evictable blocks, and where each stands among them

    def insert(self, block):
        pass

    def use(self, block):
        if block in self.place:  # pinned now; it may have been pinned before
            self.remove(block)

    def release(self, block):
        self.place[block] = len(self.blocks)
        self.blocks.append(block)

    def victim(self):
        return self.rng.choice(self.blocks)

    def remove(self, block):
        place, last = self.place.pop(block), self.blocks.pop()
        if last != block:  # the last one takes its place
            self.blocks[place], self.place[last] = last, place


class SystemPrompts:
    """LRU that lets the first blocks of prompts go only when there is nothing else."""

    def __init__(self, context, shallow=2):
        self.context, self.shallow = context, shallow
        self.depth = {}  # block -> the blocks before it
        self.others, self.system = {}, {}  # evictable blocks, the least recent first

    def insert(self, block):
        if block not in self.depth:
            row = self.context.request
            path = self.context.trace.prompt(row).tolist()
            self.depth.update((other, place) for place, other in enumerate(path))

    def use(self, block):
        self.remove(block)

    def release(self, block):
        kept = self.depth.get(block, self.shallow) < self.shallow  # blocks of outputs are in no prompt
        (self.system if kept else self.others)[block] = None

    def victim(self):
        return next(iter(self.others or self.system), None)

    def remove(self, block):
        self.others.pop(block, None)
        self.system.pop(block, None)
