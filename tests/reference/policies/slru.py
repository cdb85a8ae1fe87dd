"""Segmented LRU in two lists: probation for blocks that were used once, a protected segment for hit blocks."""


class SLRU:
    def __init__(self, context, share=0.8):
        self.room = int(share * context.capacity)
        self.probation, self.protected = [], []  # least recently released first
        self.hit = set()

    def insert(self, block):
        self.hit.discard(block)

    def use(self, block):
        self.remove(block)
        self.hit.add(block)

    def release(self, block):
        (self.protected if block in self.hit else self.probation).append(block)
        if len(self.protected) > self.room:
            demoted = self.protected.pop(0)
            self.hit.discard(demoted)
            self.probation.append(demoted)

    def victim(self):
        return (self.probation + self.protected + [None])[0]

    def remove(self, block):
        for segment in (self.probation, self.protected):
            if block in segment:
                segment.remove(block)
