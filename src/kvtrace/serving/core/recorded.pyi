"""Written by tools/kernel_stubs.py: what Python sees of recorded.py, which is compiled."""

from typing import Any

from kvtrace.serving.core.instance import Instance

class RecordedInstance(Instance):
    def __init__(self, engine: Any, requests: Any, cost: Any, service: Any) -> None: ...
