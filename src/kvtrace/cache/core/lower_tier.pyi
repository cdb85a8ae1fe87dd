"""Written by tools/kernel_stubs.py: what Python sees of lower_tier.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.tier_blocks import TierBlocks

class LowerTier(TierBlocks):
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
