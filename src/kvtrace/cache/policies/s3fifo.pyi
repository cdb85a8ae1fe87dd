"""Written by tools/kernel_stubs.py: what Python sees of s3fifo.py, which is compiled."""

from typing import Any

from kvtrace.cache.policies.base import Policy

class S3FIFO(Policy):
    def __init__(self, context: Any, small_share: Any = 0.1) -> None: ...
