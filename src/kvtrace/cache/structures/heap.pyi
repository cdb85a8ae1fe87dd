"""Written by tools/kernel_stubs.py: what Python sees of heap.py, which is compiled."""

from typing import Any

class Heaps:
    def __init__(self, blocks: Any, heaps: Any = 1) -> None: ...
