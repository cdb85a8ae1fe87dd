"""Written by tools/kernel_stubs.py: what Python sees of superseded.py, which is compiled."""

from typing import Any

from kvtrace.cache.structures.session_hints import SessionHints

class Superseded(SessionHints):
    def __init__(self, context: Any) -> None: ...
