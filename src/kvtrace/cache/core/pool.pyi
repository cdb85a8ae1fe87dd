"""Written by tools/kernel_stubs.py: what Python sees of pool.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.engine import Engine

class Pool(Engine):
    policy: Any
    resident: Any
    idle: Any
    def __init__(self, context: Any, demand: Any, policy: Any, total: Any = True, leaf_first: Any = False) -> None: ...
    def residents(self) -> Any: ...
    def self_check(self) -> Any: ...
