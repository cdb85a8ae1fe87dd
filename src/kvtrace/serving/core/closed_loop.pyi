"""Written by tools/kernel_stubs.py: what Python sees of closed_loop.py, which is compiled."""

from typing import Any

class ClosedLoop:
    outcome: Any
    due: Any
    def __init__(
        self,
        requests: Any,
        plays: Any,
        lanes: Any,
        several: Any,
        primers: Any,
        warm_up: Any,
        duration: Any,
        idle_cap: Any,
        tree_cap: Any,
    ) -> None: ...
