"""Written by tools/kernel_stubs.py: what Python sees of hierarchical_bitset.py, which is compiled."""

from typing import Any

class HierarchicalBitset:
    size: Any
    def __init__(self, size: Any) -> None: ...
