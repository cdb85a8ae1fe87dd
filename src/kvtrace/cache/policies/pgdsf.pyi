"""Written by tools/kernel_stubs.py: what Python sees of pgdsf.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class PGDSF(Policy):
    def __init__(self, context: Any, even_tokens: Any = 30000) -> None: ...
