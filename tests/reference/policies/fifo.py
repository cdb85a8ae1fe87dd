"""FIFO over a list of resident blocks: the first evictable one."""


class FIFO:
    """First in, first out."""

    def __init__(self, context):
        self.residents = []  # oldest first
        self.idle = set()

    def insert(self, block):
        self.residents.append(block)

    def use(self, block):
        self.idle.discard(block)

    def release(self, block):
        self.idle.add(block)

    def victim(self):
        return next((block for block in self.residents if block in self.idle), None)

    def remove(self, block):
        self.residents.remove(block)
        self.idle.remove(block)
