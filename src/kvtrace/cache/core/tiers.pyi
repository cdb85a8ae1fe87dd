"""Written by tools/kernel_stubs.py: what Python sees of tiers.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.pool import Pool

class Tier:
    def __init__(self, policy: Any, rows: Any) -> None: ...

class Tiers(Pool):
    tier_hits: Any
    dropped: Any
    def __init__(self, context: Any, demand: Any, policy: Any, lower: Any) -> None: ...
    def set_fetch_seconds(self, block_seconds: Any) -> Any: ...
    def self_check(self) -> Any: ...
