from .base import Context, Policy

class Belady(Policy):
    def __init__(self, context: Context) -> None: ...
