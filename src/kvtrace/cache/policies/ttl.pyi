"""Written by tools/kernel_stubs.py: what Python sees of ttl.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class TTL(Policy):
    def __init__(self, context: Any, limit_ms: Any) -> None: ...
