"""Written by tools/kernel_stubs.py: what Python sees of serving.py, which is compiled."""

from typing import Any

class Serving:
    busy: Any
    row: Any
    def __init__(self, instances: Any, router: Any, requests: Any, capacity: Any) -> None: ...
    def advance(self, rows: Any) -> Any: ...
    def close(self) -> Any: ...
