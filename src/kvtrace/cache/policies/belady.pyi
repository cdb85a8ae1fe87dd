"""Written by tools/kernel_stubs.py: what Python sees of belady.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class Belady(Policy):
    def __init__(self, context: Any) -> None: ...

def next_uses(ids: Any, start: Any, full: Any, blocks: Any) -> Any: ...
