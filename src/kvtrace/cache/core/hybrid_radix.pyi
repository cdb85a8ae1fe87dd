"""Written by the build: what Python sees of hybrid_radix.py, which is compiled."""

from typing import Any
from kvtrace.cache.core.radix import Radix

NODES: Any

class HybridRadix(Radix):
    free_second: int
    evictable_second: int
    def __init__(self, context: Any, demand: Any, second: Any, step: Any=0, policy: Any='lru', priority: Any=None) -> None: ...
    def self_check(self) -> Any: ...

class StateRadix(HybridRadix):
    def __init__(self, context: Any, demand: Any, second: Any, every: Any, step: Any=0, policy: Any='lru', priority: Any=None) -> None: ...

class WindowRadix(HybridRadix):
    def __init__(self, context: Any, demand: Any, second: Any, window: Any, step: Any=0, policy: Any='lru', priority: Any=None) -> None: ...
