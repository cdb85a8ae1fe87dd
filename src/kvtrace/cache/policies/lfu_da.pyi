"""Written by tools/kernel_stubs.py: what Python sees of lfu_da.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class LFUDA(Policy):
    def __init__(self, context: Any) -> None: ...
