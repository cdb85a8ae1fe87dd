"""Written by tools/kernel_stubs.py: what Python sees of block_queue.py, which is compiled."""

from typing import Any

class BlockQueue:
    capacity: int
    free: int
    evictions: Any
    def __init__(self, capacity: Any, blocks: Any, unhashed_first: Any = True, newest_copy: Any = False) -> None: ...
    def watch(self) -> Any: ...
    def self_check(self) -> Any: ...
