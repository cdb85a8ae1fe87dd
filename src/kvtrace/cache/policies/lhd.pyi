"""Written by tools/kernel_stubs.py: what Python sees of lhd.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class LHD(Policy):
    def __init__(self, context: Any, candidates: Any = 64) -> None: ...
