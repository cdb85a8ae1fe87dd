"""Written by the build: what Python sees of engine.py, which is compiled."""

from typing import Any

KINDS: Any

class Engine:
    context: Any
    demand: Any
    grows: bool
    needs_lock: bool
    evictions: int
    early_frees: int
    row: int
    live: int
    hits: Any
    def __init__(self, context: Any, demand: Any) -> None: ...
    def schedule(self, kind: Any, concurrency: Any=1, end: Any=None) -> Any: ...
    def advance(self, rows: Any) -> Any: ...
    def close(self) -> Any: ...
    def self_check(self) -> Any: ...

class StepCache:
    size: int
    lower: Any
