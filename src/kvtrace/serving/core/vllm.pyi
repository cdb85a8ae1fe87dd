"""Written by the build: what Python sees of vllm.py, which is compiled."""

from typing import Any
from kvtrace.serving.core.instance import Instance

class VllmEngineCore(Instance):
    log: list[Any]
    step_timer: Any
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, log: Any=False) -> None: ...

CALENDAR: Any

class VllmInstance(VllmEngineCore):
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, log: Any=False) -> None: ...

class HoldingInstance(VllmInstance):
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, log: Any=False) -> None: ...
