"""Written by tools/kernel_stubs.py: what Python sees of window_radix.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.hybrid_radix import HybridRadix

class WindowRadix(HybridRadix):
    def __init__(
        self,
        context: Any,
        demand: Any,
        second: Any,
        window: Any,
        step: Any = 0,
        policy: Any = "lru",
        priority: Any = None,
    ) -> None: ...
