"""Written by tools/kernel_stubs.py: what Python sees of requests.py, which is compiled."""

from typing import Any

class Requests:
    outcomes: Any
    def __init__(self, arrival: Any, tokens: Any, output: Any, need: Any, priority: Any = None) -> None: ...
