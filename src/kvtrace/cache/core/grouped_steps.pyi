"""Written by tools/kernel_stubs.py: what Python sees of grouped_steps.py, which is compiled."""

from typing import Any

from kvtrace.cache.core.step_cache import StepCache

class GroupedSteps(StepCache):
    groups: Any
    def __init__(self, context: Any, demand: Any, layout: Any, lengths: Any, in_flight: Any) -> None: ...
    def self_check(self) -> Any: ...
