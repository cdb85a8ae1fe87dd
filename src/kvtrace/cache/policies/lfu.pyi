"""Written by tools/kernel_stubs.py: what Python sees of lfu.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class LFU(Policy):
    def __init__(self, context: Any) -> None: ...
