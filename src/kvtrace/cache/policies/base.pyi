"""What a type checker sees of base.py, which is compiled; tests/house/test_types.py compares the two."""

from typing import Any

from ...trace.trace import Trace

class Context:
    blocks: int
    capacity: int
    trace: Trace | None
    demand: Any
    request: int
    order: int
    now: float  # ms
    in_loop: bool
    def set_due(self, due: Any) -> None: ...
    def __init__(self, blocks: int, capacity: int, trace: Trace | None = None, demand: Any = None) -> None: ...

class Policy:
    context: Context
    needs_lock: bool
    expires: bool
    misses: bool
    keeps_parents: bool
    follows_requests: bool
    def __init__(self, context: Context) -> None: ...
