"""MRU over one list: the block that was released last goes first."""

from .lru import LRU


class MRU(LRU):
    """Most recently released first."""

    def victim(self):
        return self.order[-1]
