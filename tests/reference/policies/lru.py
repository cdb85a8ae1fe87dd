"""LRU over one list: evicts the block that was released first."""


class LRU:
    """Least recently released first."""

    def __init__(self, context=None):
        self.order = []

    def insert(self, block):
        pass

    def use(self, block):
        if block in self.order:
            self.order.remove(block)

    def release(self, block):
        self.order.append(block)

    def victim(self):
        return self.order[0]

    def remove(self, block):
        self.order.remove(block)
