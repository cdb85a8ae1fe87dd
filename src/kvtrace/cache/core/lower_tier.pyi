"""Written by the build: what Python sees of lower_tier.py, which is compiled."""

from typing import Any

class TierBlocks:
    def __init__(self, blocks: Any) -> None: ...

class TierOrder: ...

class LeastRecent(TierOrder):
    def __init__(self, demand: Any, capacity: Any, blocks: Any) -> None: ...

class AdaptiveReplacement(TierOrder):
    def __init__(self, demand: Any, capacity: Any, blocks: Any) -> None: ...

ORDERS: Any

class LowerTier(TierBlocks):
    above: Any
    capacity: int
    size: int
    idle: int
    evictions: int
    fetch_seconds: float
    store_seconds: float
    hits: Any
    pool: Any
    pool_hits: Any
    tier_hits: Any
    def __init__(self, above: Any, capacity: Any, policy: Any='lru') -> None: ...
    def self_check(self) -> Any: ...
