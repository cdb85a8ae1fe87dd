"""Written by tools/kernel_stubs.py: what Python sees of closed_loop.py, which is compiled."""

from typing import Any

class ClosedLoop:
    outcome: Any
    def __init__(
        self,
        requests: Any,
        plays: Any,
        lanes: Any,
        several: Any = False,
        primers: Any = ((), ()),
        warm_up: Any = 0,
        duration: Any = NEVER,
        idle_cap: Any = NEVER,
        tree_cap: Any = NEVER,
    ) -> None: ...
