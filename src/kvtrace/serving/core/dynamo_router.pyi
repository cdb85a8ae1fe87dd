"""Written by tools/kernel_stubs.py: what Python sees of dynamo_router.py, which is compiled."""

from typing import Any

from kvtrace.serving.core.router import Router

class DynamoRouter(Router):
    least: Any
    ties: Any
    def __init__(
        self, engines: Any, requests: Any, blocks: Any, size: Any, seed: Any = 0, winner: Any = None
    ) -> None: ...
