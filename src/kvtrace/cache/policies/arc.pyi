from kvtrace.cache.policies.base import Context, Policy

class ARC(Policy):
    def __init__(self, context: Context) -> None: ...
