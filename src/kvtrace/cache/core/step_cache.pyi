"""Written by tools/kernel_stubs.py: what Python sees of step_cache.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.engine import Engine

class StepCache(Engine):
    size: Any
    lower: Any
