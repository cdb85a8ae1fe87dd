"""Written by tools/kernel_stubs.py: what Python sees of pauses.py, which is compiled."""

from typing import Any

class Pauses:
    def __init__(self, trace: Any, agents: Any, share: Any) -> None: ...
