"""Written by the build: what Python sees of vllm_offloading.py, which is compiled."""

from typing import Any
from kvtrace.serving.core.vllm import VllmInstance

class Transfer:
    def __init__(self, row: Any, is_load: Any) -> None: ...

class TransferQueue:
    def __init__(self, seconds: Any) -> None: ...

class OffloadingInstance(VllmInstance):
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, log: Any=False) -> None: ...
