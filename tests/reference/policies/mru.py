"""MRU over one list: evicts the block that was released last."""

from .lru import LRU


class MRU(LRU):
    """Most recently released first."""

    def victim(self):
        return self.order[-1]
