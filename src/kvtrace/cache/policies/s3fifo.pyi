from kvtrace.cache.policies.base import Context, Policy

class S3FIFO(Policy):
    def __init__(self, context: Context, small_share: float = 0.1) -> None: ...
