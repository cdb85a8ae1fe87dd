"""2Q, full version, over a list of new blocks, a list of ghosts, and a dict of blocks that were used again."""

from .depth import depths


class TwoQ:
    """A1in (arrivals), A1out (ghosts) and Am (main)."""

    def __init__(self, context, arrivals_share=0.25):
        self.context, self.depth = context, depths(context.demand)
        self.arrivals, self.ghosts = [], []  # the oldest first
        self.main = {}  # resident block -> its last use
        self.idle = set()
        self.arrivals_room = int(context.capacity * arrivals_share)
        self.ghost_room = int(context.capacity * 0.5)

    def insert(self, block):
        if block in self.ghosts:
            self.ghosts.remove(block)
            self.main[block] = self.now(block)
        else:
            self.arrivals.append(block)
        self.ghosts = self.ghosts[max(len(self.ghosts) - self.ghost_room, 0) :]

    def use(self, block):
        self.idle.discard(block)
        if block in self.main:
            self.main[block] = self.now(block)

    def now(self, block):
        """Recency: among the blocks of one request, the deepest is the least recent."""
        return (self.context.request, -self.depth[block])

    def release(self, block):
        self.idle.add(block)

    def victim(self):
        arrivals = [block for block in self.arrivals if block in self.idle]
        main = [block for block in self.main if block in self.idle]
        if arrivals and (len(self.arrivals) > self.arrivals_room or not main):
            return arrivals[0]
        return min(main, key=self.main.get, default=None)

    def remove(self, block):
        self.idle.remove(block)
        if block in self.main:
            del self.main[block]
        else:
            self.arrivals.remove(block)
            self.ghosts.append(block)
