"""Written by tools/kernel_stubs.py: what Python sees of paged_radix.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.engine import Engine

def doubled(array: Any) -> Any: ...

class PagedRadix(Engine):
    page_size: Any
    block_size: Any
    pages: Any
    free: Any
    evictable: Any
    def __init__(self, context: Any, demand: Any, page_size: Any, tokens: Any) -> None: ...
    def self_check(self) -> Any: ...
