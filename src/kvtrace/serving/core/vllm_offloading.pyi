"""Written by the build: what Python sees of vllm_offloading.py, which is compiled."""

from typing import Any
from kvtrace.serving.core.vllm import HoldingInstance

class Transfer:
    def __init__(self, row: Any, is_load: Any) -> None: ...

class TransferQueue:
    def __init__(self, seconds: Any) -> None: ...

class PoolTransfer:
    def __init__(self, instance: Any, row: Any, names: Any, is_load: Any) -> None: ...

class SharedPool:
    capacity: int
    read: int
    written: int
    evictions: int
    blocks: Any
    def __init__(self, blocks: Any, capacity: Any, fetch_seconds: Any, store_seconds: Any, latency: Any) -> None: ...

class OffloadingInstance(HoldingInstance):
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, log: Any=False) -> None: ...
