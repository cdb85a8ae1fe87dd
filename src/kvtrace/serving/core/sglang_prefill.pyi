"""Written by the build: what Python sees of sglang_prefill.py, which is compiled."""

from typing import Any
from kvtrace.serving.core.instance import Instance

class SglangQueue(Instance):
    log: list[Any]
    def __init__(self, engine: Any, requests: Any, cost: Any, settings: Any, max_new_tokens: Any, log: Any=False) -> None: ...

class SglangPages(SglangQueue): ...

class SglangPrefill(SglangPages): ...
