from .base import Context, Policy

class MRU(Policy):
    def __init__(self, context: Context) -> None: ...
