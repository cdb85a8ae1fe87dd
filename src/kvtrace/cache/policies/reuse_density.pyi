"""Written by tools/kernel_stubs.py: what Python sees of reuse_density.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class ReuseDensity(Policy):
    def __init__(self, context: Any, table: Any = None) -> None: ...
