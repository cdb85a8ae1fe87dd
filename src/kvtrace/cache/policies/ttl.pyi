from .base import Context, Policy

class TTL(Policy):
    def __init__(self, context: Context, limit_ms: float) -> None: ...
