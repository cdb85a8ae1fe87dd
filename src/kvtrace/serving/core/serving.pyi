"""Written by tools/kernel_stubs.py: what Python sees of serving.py, which is compiled."""

from typing import Any

class Serving:
    outcomes: Any
    busy: Any
    row: Any
    def __init__(
        self,
        engines: Any,
        router: Any,
        arrival: Any,
        tokens: Any,
        output: Any,
        need: Any,
        limits: Any,
        cost: Any,
        prefetches: Any = True,
    ) -> None: ...
    def advance(self, rows: Any) -> Any: ...
    def close(self) -> Any: ...

class Instance:
    now: float
    busy: float
    def __init__(self, engine: Any, serving: Any) -> None: ...
