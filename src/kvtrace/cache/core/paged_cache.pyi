"""Written by tools/kernel_stubs.py: what Python sees of paged_cache.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.step_cache import StepCache

class PagedCache(StepCache):
    tier_hits: Any
    queue: Any
    block_size: Any
    def __init__(self, context: Any, demand: Any, unhashed_first: Any = True) -> None: ...
    def self_check(self) -> Any: ...
    def table(self, row: Any) -> Any: ...
    def watch(self) -> Any: ...
