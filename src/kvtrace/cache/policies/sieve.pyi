from kvtrace.cache.policies.base import Context, Policy

class Sieve(Policy):
    def __init__(self, context: Context) -> None: ...
