from .base import Context, Policy

class PGDSF(Policy):
    def __init__(self, context: Context, even_tokens: int = 30_000) -> None: ...
