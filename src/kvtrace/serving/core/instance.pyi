"""Written by the build: what Python sees of instance.py, which is compiled."""

from typing import Any

class Requests:
    outcomes: Any
    def __init__(self, arrival: Any, tokens: Any, output: Any, need: Any, priority: Any=None) -> None: ...

class SessionLanes:
    outcome: Any
    due: Any
    def __init__(self, requests: Any, plays: Any, lanes: Any, several: Any, primers: Any, warm_up: Any, duration: Any, idle_cap: Any, tree_cap: Any, front: Any) -> None: ...

NO_TERMS: Any

class Instance:
    engine: Any
    now: float
    busy: float
    steps: int
    load: int
    prefill: int
    blocks: int
    timeline: list[Any]
    reports: list[Any]
    loop: Any
    def __init__(self, engine: Any, requests: Any, cost: Any) -> None: ...
    def watch(self) -> Any: ...
    def listen(self) -> Any: ...
    def join(self, group: Any, prefills: Any) -> Any: ...

class RecordedInstance(Instance):
    def __init__(self, engine: Any, requests: Any, cost: Any, service: Any) -> None: ...

class ReservingInstance(Instance):
    def __init__(self, engine: Any, requests: Any, cost: Any, limits: Any, prefetches: Any=True) -> None: ...
