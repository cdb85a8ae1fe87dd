"""Written by tools/kernel_stubs.py: what Python sees of vllm.py, which is compiled."""

from typing import Any

from kvtrace.serving.core.vllm_scheduler import VllmScheduler

class VllmInstance(VllmScheduler):
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, log: Any = False) -> None: ...
