from kvtrace.cache.core.engine import Engine
from kvtrace.cache.demand import BlockDemand
from kvtrace.cache.policies.base import Context

class FreeQueue(Engine):
    def __init__(
        self, context: Context, demand: BlockDemand, unhashed_first: bool = True, newest_copy: bool = False
    ) -> None: ...
