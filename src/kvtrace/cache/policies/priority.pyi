from .base import Context, Policy

class Priority(Policy):
    def __init__(self, context: Context, duration_ms: float = ...) -> None: ...
