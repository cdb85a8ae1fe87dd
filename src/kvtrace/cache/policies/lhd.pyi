from kvtrace.cache.policies.base import Context, Policy

class LHD(Policy):
    def __init__(self, context: Context, candidates: int = 64) -> None: ...
