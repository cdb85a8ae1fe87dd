"""S3-FIFO over three lists, oldest first, and a dict of hits."""


class S3FIFO:
    """A small queue, a main queue and the ghosts of the small one."""

    def __init__(self, context, small_share=0.1):
        self.small, self.main, self.ghosts = [], [], []
        self.small_room = max(int(context.capacity * small_share), 1)
        self.main_room = context.capacity - self.small_room
        self.ghost_room = int(context.capacity * 0.9)
        self.idle = set()
        self.hits = {}  # resident block -> hits, at most 3
        self.evicted = False

    def insert(self, block):
        remembered = block in self.ghosts
        if remembered:
            self.ghosts.remove(block)
        self.ghosts = self.ghosts[max(len(self.ghosts) - self.ghost_room, 0) :]
        early = not self.evicted and len(self.small) >= self.small_room
        (self.main if remembered or early else self.small).append(block)
        self.hits[block] = 0

    def use(self, block):
        self.idle.discard(block)
        self.hits[block] = min(self.hits[block] + 1, 3)

    def release(self, block):
        self.idle.add(block)

    def victim(self):
        while self.idle:
            small = [block for block in self.small if block in self.idle]
            main = [block for block in self.main if block in self.idle]
            if main and (len(self.main) > self.main_room or not small):
                if self.hits[main[0]] == 0:
                    return main[0]
                self.hits[main[0]] -= 1
                self.main.remove(main[0])
                self.main.append(main[0])
            else:
                if self.hits[small[0]] < 2:
                    return small[0]
                self.hits[small[0]] = 0
                self.small.remove(small[0])
                self.main.append(small[0])
        return None

    def remove(self, block):
        self.evicted = True
        self.idle.remove(block)
        del self.hits[block]
        if block in self.main:
            self.main.remove(block)
        else:
            self.small.remove(block)
            self.ghosts.append(block)
