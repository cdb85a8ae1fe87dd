"""The cache of NVIDIA Dynamo's mocked engine (ai-dynamo-runtime 1.6.1): vLLM's, and all its blocks are usable.

Checked against Dynamo's offline replay: each request's hits on the Mooncake conversation trace, one request at a time
(tests/clients/test_dynamo_replay.py), and in time (tests/clients/test_dynamo_times.py).
"""

from __future__ import annotations

from ..core.blocks import FreeQueue
from ..demand import BlockDemand
from ..policies.base import Context


def build(demand: BlockDemand, context: Context, policy: str = "lru") -> FreeQueue:
    """Build the cache of `context.capacity` blocks; its one policy is lru, by the order of the queue.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    return FreeQueue(context, demand)
