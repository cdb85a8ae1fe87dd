"""Written by tools/kernel_stubs.py: what Python sees of engine.py, which is compiled."""

from typing import Any

class Engine:
    hits: Any
    context: Any
    demand: Any
    grows: bool
    needs_lock: bool
    evictions: Any
    early_frees: Any
    row: Any
    live: Any
    def __init__(self, context: Any, demand: Any) -> None: ...
    def schedule(self, kind: Any, concurrency: Any = 1, end: Any = None) -> Any: ...
    def advance(self, rows: Any) -> Any: ...
    def close(self) -> Any: ...
    def self_check(self) -> Any: ...
