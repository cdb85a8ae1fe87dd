"""Written by tools/kernel_stubs.py: what Python sees of state_radix.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.hybrid_radix import HybridRadix

class StateRadix(HybridRadix):
    def __init__(
        self,
        context: Any,
        demand: Any,
        second: Any,
        every: Any,
        step: Any = 0,
        policy: Any = "lru",
        priority: Any = None,
    ) -> None: ...
