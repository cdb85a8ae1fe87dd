"""Written by tools/kernel_stubs.py: what Python sees of workload.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class Workload(Policy):
    def __init__(self, context: Any, life_ms: Any = 600000.0) -> None: ...

def categories(trace: Any) -> Any: ...
def turns(trace: Any) -> Any: ...
