"""Two eviction orders of your own: `kvtrace simulate TRACE --policy my_policies:Mru` finds them on the Python path."""


class Mru:
    """Most recently used: the block that was released last goes first."""

    def __init__(self, context):
        self.order = {}  # evictable block -> nothing; a dict remembers who came when

    def insert(self, block):
        pass

    def use(self, block):
        self.order.pop(block, None)  # pinned now; it may have been pinned before

    def release(self, block):
        self.order[block] = None

    def victim(self):
        return next(reversed(self.order), None)

    def remove(self, block):
        del self.order[block]


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
