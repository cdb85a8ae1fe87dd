"""Written by the build: what Python sees of grouped_cache.py, which is compiled."""

from typing import Any
from kvtrace.cache.core.engine import Engine, StepCache

KINDS: Any

class GroupedCache(Engine):
    pool: Any
    layout: Any
    def __init__(self, context: Any, demand: Any, layout: Any, lengths: Any=None) -> None: ...
    def self_check(self) -> Any: ...

class GroupedSteps(StepCache):
    groups: Any
    def __init__(self, context: Any, demand: Any, layout: Any, lengths: Any, in_flight: Any) -> None: ...
    def self_check(self) -> Any: ...
