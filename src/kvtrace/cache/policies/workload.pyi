from .base import Context, Policy

class Workload(Policy):
    def __init__(self, context: Context, life_ms: float = 600_000.0) -> None: ...
