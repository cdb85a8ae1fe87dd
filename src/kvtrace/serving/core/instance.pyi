"""Written by tools/kernel_stubs.py: what Python sees of instance.py, which is compiled."""

from typing import Any

class Instance:
    engine: Any
    now: float
    busy: float
    steps: Any
    load: Any
    prefill: Any
    blocks: Any
    timeline: list[Any]
    loop: Any
    def __init__(self, engine: Any, requests: Any, cost: Any) -> None: ...
    def watch(self) -> Any: ...
