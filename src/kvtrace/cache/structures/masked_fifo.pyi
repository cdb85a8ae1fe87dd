"""Written by tools/kernel_stubs.py: what Python sees of masked_fifo.py, which is compiled."""

from typing import Any

class MaskedFifo:
    tail: int
    size: Any
    def __init__(self, slots: Any, tag: Any = 0) -> None: ...
