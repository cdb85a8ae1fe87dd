"""vLLM's prefix cache: a queue of free blocks, cached or not, and a table from hashes to blocks.

Semantics: vLLM 0.33.0, one group of full attention (vllm/v1/core/kv_cache_manager.py, block_pool.py). Checked: against
the unmodified code: every request's hits and all early frees, on the Mooncake conversation trace and on random traces,
in each mode and schedule (tests/clients/test_vllm_cache.py, tests/vectors/engine_vllm.json); the older free order
against vLLM 0.20.2, on the conversation trace.

`capacity` counts usable blocks: vLLM's num_gpu_blocks is one more, for its null block. Since May 2026 a freed block
without a hash is allocated next (free order "prepend"); before, it joined the end of the queue ("append").

Not modelled: chunked prefill, where blocks get their hashes chunk by chunk; the watermark; several groups of layers. If
blocks run out, vLLM lets the newest request wait or start over; this model ends the oldest active request early.
"""

from __future__ import annotations

from ..core.free_queue import FreeQueue
from ..demand import BlockDemand
from ..policies.base import Context


def build(demand: BlockDemand, context: Context, policy: str = "lru", *, free_order: str = "prepend") -> FreeQueue:
    """Build vLLM's cache of `context.capacity` usable blocks; its one policy is lru, by the order of the queue.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    return FreeQueue(context, demand, unhashed_first=free_order == "prepend")
