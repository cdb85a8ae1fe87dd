"""Written by tools/kernel_stubs.py: what Python sees of block_pool.py, which is compiled."""

from typing import Any

class BlockPool:
    capacity: Any
    free: Any
    evictions: Any
    def __init__(self, capacity: Any, keys: Any) -> None: ...
    def self_check(self) -> Any: ...
