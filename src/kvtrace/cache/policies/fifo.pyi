"""Written by tools/kernel_stubs.py: what Python sees of fifo.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class FIFO(Policy):
    def __init__(self, context: Any) -> None: ...
