from kvtrace.cache.policies.base import Context, Policy

class TwoQ(Policy):
    def __init__(self, context: Context, arrivals_share: float = 0.25) -> None: ...
