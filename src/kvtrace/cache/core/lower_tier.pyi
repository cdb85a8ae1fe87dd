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

class Transfer:
    def __init__(self, number: Any, kind: Any, client: Any, row: Any, names: Any) -> None: ...

class DynamoTier:
    capacity: int
    size: int
    evictions: int
    shared: bool
    now: float
    epoch: int
    changes: int
    def __init__(self, capacity: Any, order: Any, rows: Any, alone: Any, together: Any=(0, 0), latency: Any=0, shared: Any=False, count: Any=1) -> None: ...
    def client(self, number: Any) -> Any: ...
    def self_check(self) -> Any: ...

class DynamoClient:
    tier: Any
    number: int
    hits: Any
    pending: int
    tier_hits: Any
    def __init__(self, tier: Any, number: Any, rows: Any) -> None: ...
    def watch(self) -> Any: ...
    def self_check(self) -> Any: ...
