"""Written by tools/kernel_stubs.py: what Python sees of retain.py, which is compiled."""

from typing import Any

from kvtrace.cache.structures.session_hints import SessionHints

class Retain(SessionHints):
    def __init__(self, context: Any, duration_ms: Any = float("inf")) -> None: ...

def priorities_of(trace: Any, agent_of: Any, agents: Any) -> Any: ...
