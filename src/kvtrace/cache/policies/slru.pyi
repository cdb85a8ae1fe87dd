"""Written by tools/kernel_stubs.py: what Python sees of slru.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class SLRU(Policy):
    def __init__(self, context: Any, share: Any = 0.8) -> None: ...
