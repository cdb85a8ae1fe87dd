"""Written by tools/kernel_stubs.py: what Python sees of sieve.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class Sieve(Policy):
    def __init__(self, context: Any) -> None: ...
