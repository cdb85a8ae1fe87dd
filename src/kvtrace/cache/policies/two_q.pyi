"""Written by tools/kernel_stubs.py: what Python sees of two_q.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class TwoQ(Policy):
    def __init__(self, context: Any, arrivals_share: Any = 0.25) -> None: ...
