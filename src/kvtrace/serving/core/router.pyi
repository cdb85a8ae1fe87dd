"""Written by tools/kernel_stubs.py: what Python sees of router.py, which is compiled."""

from typing import Any

class Router:
    def __init__(self, engines: Any, kind: Any, key: Any, tokens: Any, size: Any) -> None: ...
