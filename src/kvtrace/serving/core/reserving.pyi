"""Written by tools/kernel_stubs.py: what Python sees of reserving.py, which is compiled."""

from typing import Any

from kvtrace.serving.core.instance import Instance

class ReservingInstance(Instance):
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, prefetches: Any = True) -> None: ...
