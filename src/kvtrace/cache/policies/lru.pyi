"""Written by tools/kernel_stubs.py: what Python sees of lru.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class LRU(Policy):
    def __init__(self, context: Any) -> None: ...
