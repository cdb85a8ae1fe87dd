from .base import Context, Policy

class LFUDA(Policy):
    def __init__(self, context: Context) -> None: ...
