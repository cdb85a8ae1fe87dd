from .base import Context, Policy

class SLRU(Policy):
    def __init__(self, context: Context, share: float = 0.8) -> None: ...
