from kvtrace.cache.policies.base import Context, Policy

class FIFO(Policy):
    def __init__(self, context: Context) -> None: ...
