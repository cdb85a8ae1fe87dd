"""Written by tools/kernel_stubs.py: what Python sees of tier_orders.py, which is compiled."""

from typing import Any

class TierOrder: ...

class LeastRecent(TierOrder):
    def __init__(self, demand: Any, capacity: Any, blocks: Any) -> None: ...

class AdaptiveReplacement(TierOrder):
    def __init__(self, demand: Any, capacity: Any, blocks: Any) -> None: ...
