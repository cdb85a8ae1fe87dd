"""Written by tools/kernel_stubs.py: what Python sees of arc.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class ARC(Policy):
    def __init__(self, context: Any) -> None: ...
