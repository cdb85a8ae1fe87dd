from kvtrace.cache.policies.base import Context, Policy

class LFU(Policy):
    def __init__(self, context: Context) -> None: ...
