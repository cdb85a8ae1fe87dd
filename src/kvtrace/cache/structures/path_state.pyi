"""Written by tools/kernel_stubs.py: what Python sees of path_state.py, which is compiled."""

from typing import Any

class PathState:
    def __init__(self, context: Any, bounds: Any, recency: Any) -> None: ...

def cells(demand: Any, bounds: Any) -> Any: ...
