"""vLLM's prefix cache: a queue of free blocks, cached or not, and a table from hashes to blocks.

Semantics: vLLM 0.33.0, one group of full attention (vllm/v1/core/kv_cache_manager.py, block_pool.py).
Checked: against that code itself, unmodified: every request's hits and all early frees on the Mooncake conversation
trace and on random traces, in each mode and schedule (tests/clients/test_vllm_cache.py,
tests/vectors/engine_vllm.json); the older free order against vLLM 0.20.2, on the conversation trace.

`capacity` counts usable blocks: vLLM's num_gpu_blocks is one more, for its null block. Since May 2026 a freed block
without a hash is the next to be taken (free order "prepend"); before, it joined the queue's end ("append").

What stays out: prompts prefilled in chunks, whose blocks get their hashes chunk by chunk; the watermark; several groups
of layers. vLLM makes the request that came last wait or start over where we free the oldest live one early.
"""

from __future__ import annotations

from ..._base.errors import UsageError
from ..core.free_queue import FreeQueue
from ..demand import Jobs
from ..policies.base import Context

FREE_ORDERS = ("prepend", "append")


def build(jobs: Jobs, context: Context, policy: str = "lru", *, free_order: str = "prepend") -> FreeQueue:
    """vLLM's cache of `context.capacity` usable blocks for the jobs; its one policy is lru, by the queue's order.

    UsageError where there is no such free order.

    >>> from kvtrace.cache.demand import jobs
    >>> from kvtrace.trace.building import toy
    >>> asked = jobs(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(asked, Context(blocks=asked.blocks, capacity=4, jobs=asked))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    if free_order not in FREE_ORDERS:
        raise UsageError(f"there is no free-order {free_order!r}. Try {' or '.join(FREE_ORDERS)}.")
    return FreeQueue(context, jobs, unhashed_first=free_order == "prepend")
