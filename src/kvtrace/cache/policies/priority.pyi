"""Written by tools/kernel_stubs.py: what Python sees of priority.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class Priority(Policy):
    def __init__(self, context: Any, duration_ms: Any = float("inf")) -> None: ...

def request_priorities(trace: Any) -> Any: ...
