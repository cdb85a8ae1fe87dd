"""Written by tools/kernel_stubs.py: what Python sees of queue.py, which is compiled."""

from typing import Any

class Slots:
    def __init__(self, blocks: Any) -> None: ...

class Queue:
    size: Any
    def __init__(self, slots: Any, tag: Any = 0) -> None: ...
