"""Written by tools/kernel_stubs.py: what Python sees of closed_serving.py, which is compiled."""

from typing import Any

from kvtrace.serving.core.serving import Serving

class ClosedServing(Serving):
    over: bool
    def __init__(self, instances: Any, router: Any, requests: Any, capacity: Any, loop: Any) -> None: ...
    def advance(self, rows: Any) -> Any: ...
