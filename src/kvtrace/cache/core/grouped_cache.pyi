"""Written by tools/kernel_stubs.py: what Python sees of grouped_cache.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.engine import Engine

class GroupedCache(Engine):
    pool: Any
    layout: Any
    def __init__(self, context: Any, demand: Any, layout: Any, lengths: Any = None) -> None: ...
    def self_check(self) -> Any: ...
