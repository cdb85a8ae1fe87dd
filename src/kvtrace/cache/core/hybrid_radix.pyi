"""Written by tools/kernel_stubs.py: what Python sees of hybrid_radix.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.radix import Radix

class HybridRadix(Radix):
    free_second: Any
    evictable_second: Any
    def __init__(
        self, context: Any, demand: Any, second: Any, step: Any = 0, policy: Any = "lru", priority: Any = None
    ) -> None: ...
    def self_check(self) -> Any: ...
