"""ARC over two dicts of resident blocks with their last request, and two lists of ghosts, oldest first."""


class ARC:
    """Adaptive replacement. Recency is the last request; among the blocks of one request, the first is most recent."""

    def __init__(self, context):
        self.context = context
        self.t1, self.t2 = {}, {}  # resident block -> time of its last request
        self.b1, self.b2 = [], []
        self.idle = set()
        self.target = 0.0
        self.returning = self.from_b2 = False
        self.moment = (None, 0, 0)  # the request, the number of moments, the number of blocks in the current one
        self.released = False

    def miss(self, block):
        self.from_b2 = block in self.b2
        self.returning = block in self.b1 or block in self.b2
        if block in self.b1:
            self.target = min(self.target + max(len(self.b2) / len(self.b1), 1), self.context.capacity)
            self.b1.remove(block)
        elif block in self.b2:
            self.target = max(self.target - max(len(self.b1) / len(self.b2), 1), 0)
            self.b2.remove(block)

    def insert(self, block):
        (self.t2 if self.returning else self.t1)[block] = self.now()
        self.returning = self.from_b2 = False
        capacity = self.context.capacity
        while self.b1 and len(self.t1) + len(self.b1) > capacity:
            self.b1.pop(0)
        while self.b2 and len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) > 2 * capacity:
            self.b2.pop(0)

    def use(self, block):
        self.idle.discard(block)
        self.t1.pop(block, None)
        self.t2[block] = self.now()

    def now(self):
        """A moment is a request, or its part between releases. Within a moment, later blocks are less recent."""
        request, moments, wanted = self.moment
        if request != self.context.request or self.released:
            moments, wanted = moments + 1, 0
        self.moment = (self.context.request, moments, wanted + 1)
        self.released = False
        return (moments, -wanted)

    def release(self, block):
        self.idle.add(block)
        self.released = True

    def victim(self):
        t1, t2 = ([block for block in queue if block in self.idle] for queue in (self.t1, self.t2))
        if t1 and (not t2 or len(self.t1) > self.target or (len(self.t1) == self.target and self.from_b2)):
            return min(t1, key=self.t1.get)
        return min(t2, key=self.t2.get, default=None)

    def remove(self, block):
        self.idle.remove(block)
        if block in self.t1:
            del self.t1[block]
            self.b1.append(block)
        else:
            del self.t2[block]
            self.b2.append(block)
