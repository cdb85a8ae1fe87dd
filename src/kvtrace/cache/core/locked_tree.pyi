"""Written by tools/kernel_stubs.py: what Python sees of locked_tree.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.engine import Engine

class LockedTree(Engine):
    free: Any
    evictable: Any
    def __init__(self, context: Any, demand: Any, nodes: Any, size: Any) -> None: ...
