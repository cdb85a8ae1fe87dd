"""Written by the build: what Python sees of serving.py, which is compiled."""

from typing import Any

KINDS: Any

class Router:
    def __init__(self, engines: Any, kind: Any, key: Any, tokens: Any, size: Any) -> None: ...

ROLES: Any

class DynamoRouter(Router):
    least: Any
    ties: int
    def __init__(self, engines: Any, requests: Any, blocks: Any, size: Any, seed: Any=0, winner: Any=None, role: Any='both') -> None: ...

class EngineBalancer(Router):
    def __init__(self, instances: Any, requests: Any) -> None: ...

class VllmBalancer(EngineBalancer):
    client: Any
    def __init__(self, instances: Any, requests: Any, clients: Any, seed: Any=0, lockstep: Any=False) -> None: ...

class SglangController(EngineBalancer):
    def __init__(self, instances: Any, requests: Any, by_tokens: Any) -> None: ...

class Fleet:
    row: int
    instances: Any
    def __init__(self, engines: Any, router: Any, held: Any, places: Any=None) -> None: ...
    def advance(self, rows: Any) -> Any: ...
    def close(self) -> Any: ...

class Serving:
    row: int
    busy: Any
    def __init__(self, instances: Any, router: Any, requests: Any, capacity: Any) -> None: ...
    def advance(self, rows: Any) -> Any: ...
    def close(self) -> Any: ...

class ClosedServing(Serving):
    over: bool
    def __init__(self, instances: Any, router: Any, requests: Any, capacity: Any, loop: Any) -> None: ...
    def advance(self, rows: Any) -> Any: ...
