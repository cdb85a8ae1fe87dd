"""SIEVE over a list of resident blocks, a set of visited blocks, and the block that the hand points at."""


class Sieve:
    """A hand moves from the oldest block to the newest, and then starts again at the oldest."""

    def __init__(self, context):
        self.residents = []  # oldest first
        self.idle = set()
        self.hit = set()
        self.hand = None

    def insert(self, block):
        self.residents.append(block)

    def use(self, block):
        self.idle.discard(block)
        self.hit.add(block)

    def release(self, block):
        self.idle.add(block)

    def victim(self):
        start = 0 if self.hand is None else self.residents.index(self.hand)
        round_once = self.residents[start:] + self.residents[:start]
        for block in round_once + round_once:
            if block not in self.idle:
                continue
            if block not in self.hit:
                self.hand = block
                return block
            self.hit.remove(block)
        return None

    def remove(self, block):
        place = self.residents.index(block)
        if self.hand == block:
            newer = self.residents[place + 1 :]
            self.hand = newer[0] if newer else None
        del self.residents[place]
        self.idle.remove(block)
        self.hit.discard(block)
