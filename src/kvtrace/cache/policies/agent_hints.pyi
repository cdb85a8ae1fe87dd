"""Written by tools/kernel_stubs.py: what Python sees of agent_hints.py, which is compiled."""

from typing import Any

from kvtrace.cache.structures.session_hints import SessionHints

class AgentHints(SessionHints):
    def __init__(self, context: Any, share: Any = 0.9) -> None: ...
