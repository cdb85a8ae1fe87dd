"""nano-vllm's prefix cache: as vLLM's, but the newest copy of a block wins and each freed block joins the queue's end.

Semantics: nano-vllm as of 2026, its BlockManager (nanovllm/engine/block_manager.py). It looks up all blocks of a prompt
except the last one. A hash names the block that was registered last, until that block is allocated again.
Checked: once, against that class from a public copy with its hash function replaced: every request's hits and all early
frees on 900 random cases, in all modes and schedules; in each test run, against the twin tests/reference/free_queue.py.
In block mode with the serial schedule it has vLLM's hits on the Mooncake conversation trace.

Not modelled: nano-vllm registers the hashes of a prompt after its prefill, so prompts of one batch do not hit each
other's blocks; here they are registered at admission. If blocks run out, nano-vllm lets the newest request start over;
this model ends the oldest active request early.
"""

from __future__ import annotations

from ..core.blocks import FreeQueue
from ..demand import BlockDemand
from ..policies.base import Context


def build(demand: BlockDemand, context: Context, policy: str = "lru") -> FreeQueue:
    """Build nano-vllm's cache of `context.capacity` blocks; its one policy is lru, by the order of the queue.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1", "0 1", "0 1 2"), recompute_last=True)
    >>> cache = build(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 1, 2]
    """
    return FreeQueue(context, demand, unhashed_first=False, newest_copy=True)
