"""Written by tools/kernel_stubs.py: what Python sees of fleet.py, which is compiled."""

from typing import Any

class Fleet:
    instances: Any
    row: Any
    def __init__(self, engines: Any, router: Any, held: Any) -> None: ...
    def advance(self, rows: Any) -> Any: ...
    def close(self) -> Any: ...
