"""Three example eviction policies. In this folder, run `kvtrace simulate TRACE --policy my_policies:Newest`."""

import random


class Newest:
    """Evicts the block that became idle last."""

    def __init__(self, context):
        self.idle = {}  # block -> nothing, in the order in which they became idle

    def insert(self, block):
        pass

    def use(self, block):
        self.idle.pop(block, None)

    def release(self, block):
        self.idle[block] = None

    def victim(self):
        return next(reversed(self.idle))

    def remove(self, block):
        del self.idle[block]


class Random:
    """Evicts a random evictable block, drawn with a fixed seed: a baseline for other policies."""

    def __init__(self, context):
        self.rng = random.Random(7)
        self.blocks, self.place = [], {}  # the evictable blocks; block -> its index there

    def insert(self, block):
        pass

    def use(self, block):
        if block in self.place:  # else it was pinned before
            self.remove(block)

    def release(self, block):
        self.place[block] = len(self.blocks)
        self.blocks.append(block)

    def victim(self):
        return self.rng.choice(self.blocks)

    def remove(self, block):
        place, last = self.place.pop(block), self.blocks.pop()
        if last != block:  # the last block takes its place
            self.blocks[place], self.place[last] = last, place


class SystemPrompts:
    """LRU that evicts the first blocks of prompts only if no other block is evictable."""

    def __init__(self, context, shallow=2):
        self.context, self.shallow = context, shallow
        self.depth = {}  # block -> number of blocks before it
        self.others, self.system = {}, {}  # evictable blocks, least recent first

    def insert(self, block):
        if block not in self.depth:
            row = self.context.request
            path = self.context.trace.prompt(row).tolist()
            self.depth.update((other, place) for place, other in enumerate(path))

    def use(self, block):
        self.remove(block)

    def release(self, block):
        kept = self.depth.get(block, self.shallow) < self.shallow  # output blocks are not in a prompt
        (self.system if kept else self.others)[block] = None

    def victim(self):
        return next(iter(self.others or self.system), None)

    def remove(self, block):
        self.others.pop(block, None)
        self.system.pop(block, None)
