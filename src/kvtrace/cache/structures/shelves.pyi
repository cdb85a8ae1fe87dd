"""Written by tools/kernel_stubs.py: what Python sees of shelves.py, which is compiled."""

from typing import Any

class Shelves:
    def __init__(self, blocks: Any, shelves: Any) -> None: ...
