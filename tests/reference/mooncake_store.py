"""Mooncake Store's master (0.3.13), in plain Python: what it refuses, and which objects a pass of its eviction takes.

Each object has a deadline: when it was put, or a lease after it was last read or asked for, whichever is later. Objects
with a deadline in the future, or a hard pin, are never evicted. A pass evicts from the first deadline on; objects with
a soft pin come last. It runs when more than `high` of the memory is used, and when a put found no room.
"""

from __future__ import annotations

from math import ceil


class Store:
    def __init__(self, case):
        self.capacity, self.lease = case["objects"], case["lease_ms"]
        self.high, self.ratio, self.soft_ms = case["high"], case["ratio"], case["soft_ms"]
        self.deadline, self.soft, self.hard = {}, {}, set()

    def put(self, now, name, pin=None):
        """Whether there was room. A second put of an object changes nothing."""
        if name in self.deadline:
            return True
        if len(self.deadline) >= self.capacity:
            return False
        self.deadline[name] = now
        if pin == "soft":
            self.soft[name] = now + self.soft_ms
        elif pin == "hard":
            self.hard.add(name)
        return True

    def read(self, now, name):
        """Whether an object is there, which renews its lease: a get, or the question whether it exists."""
        if name in self.deadline:
            self.deadline[name] = max(self.deadline[name], now + self.lease)
            if name in self.soft:
                self.soft[name] = max(self.soft[name], now + self.soft_ms)
        return name in self.deadline

    def evict(self, now, used=None, base=None):
        """The objects that a pass takes. `used` is the share of the memory, and `base` counts objects without a hard
        pin: puts that are under way count sooner or later.
        """
        used = len(self.deadline) / self.capacity if used is None else used
        base = len(self.deadline) - len(self.hard) if base is None else base
        share = max(self.ratio, used - self.high + self.ratio)
        target, least = ceil(base * share), ceil(base * max(share / 2, used - self.high))
        free = [name for name in self.deadline if name not in self.hard and self.deadline[name] <= now]
        pinned = {name for name in free if self.soft.get(name, -1) > now}
        victims = sorted(set(free) - pinned, key=self.deadline.__getitem__)[:target]
        if len(victims) < least:
            victims += sorted(pinned, key=self.deadline.__getitem__)[: least - len(victims)]
        for name in victims:
            del self.deadline[name]
            self.soft.pop(name, None)
        return victims
