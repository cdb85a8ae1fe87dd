"""Written by tools/kernel_stubs.py: what Python sees of session_hints.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class SessionHints(Policy):
    agents: int
    def __init__(self, context: Any) -> None: ...

def agents_of(trace: Any) -> Any: ...
def later_requests(agent_of: Any, agents: Any) -> Any: ...
