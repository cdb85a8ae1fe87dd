"""Written by tools/kernel_stubs.py: what Python sees of python_policy.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

def users_function(function: Any, policy: Any, verb: Any) -> Any: ...
def failure(error: Any) -> Any: ...

class PythonPolicy(Policy):
    def __init__(self, context: Any, user_policy: Any, name: Any = None) -> None: ...
