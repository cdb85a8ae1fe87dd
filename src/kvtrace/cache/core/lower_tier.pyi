"""Written by tools/kernel_stubs.py: what Python sees of lower_tier.py, which is compiled."""

from typing import Any

class LowerTier:
    above: Any
    capacity: Any
    size: Any
    idle: Any
    evictions: Any
    fetch_seconds: float
    store_seconds: float
    hits: Any
    def __init__(self, above: Any, capacity: Any, policy: Any = "lru") -> None: ...
    def self_check(self) -> Any: ...
