"""Written by tools/kernel_stubs.py: what Python sees of oracle_session.py, which is compiled."""

from typing import Any

from kvtrace.cache.structures.session_hints import SessionHints

class OracleSession(SessionHints):
    def __init__(self, context: Any) -> None: ...

def next_rows(agent_of: Any, agents: Any) -> Any: ...
