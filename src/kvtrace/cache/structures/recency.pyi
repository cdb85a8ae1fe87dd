"""Written by tools/kernel_stubs.py: what Python sees of recency.py, which is compiled."""

from typing import Any

class Recency:
    def __init__(self, context: Any) -> None: ...

def depths(context: Any) -> Any: ...
