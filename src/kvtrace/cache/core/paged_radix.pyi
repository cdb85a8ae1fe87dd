"""Written by tools/kernel_stubs.py: what Python sees of paged_radix.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.locked_tree import LockedTree

def doubled(array: Any) -> Any: ...

class PagedRadix(LockedTree):
    page_size: Any
    block_size: Any
    pages: Any
    def __init__(self, context: Any, demand: Any, page_size: Any, tokens: Any) -> None: ...
    def self_check(self) -> Any: ...
