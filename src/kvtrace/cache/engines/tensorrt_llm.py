"""TensorRT-LLM's prefix cache: a tree of blocks that evicts idle leaves by priority, then by last use.

Semantics: TensorRT-LLM 1.3, its C++ cache manager, V1 (cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp,
evictionPolicy.cpp) and its page "KV Cache System".
Checked: read, not run. It is the reference engine's pool, leaf-first, whose plain twin is tests/reference/pool.py.

A prompt's last token is always computed, so at most n - 1 of n tokens match. A request releases its blocks tail first.
TensorRT-LLM's blocks have 32 tokens by default; here they have the trace's block size. Policy lru: all priorities are
the default 35. Policy priority: the trace's extra column of that name, 0 to 100, lowest first; with priority:10m a
priority returns to 35 after ten minutes without use.

Offload to the host: a block that leaves the GPU with a priority of 30 or more moves to the host's pool, and returns
when it is hit. For the policy lru that is a cache in two exclusive tiers: `--tiers hbm=5000,dram=50000`. Tiers run the
reference engine, where a prompt's last block may hit too. Offload with priorities is not modelled.

Not modelled: reuse of a part of a block (hits are whole blocks); a parent with a lower priority than its children,
which TensorRT-LLM evicts together with them, while here it waits for them; priorities for a range of tokens or for
outputs; attention windows; the newer manager (V2) of some models. If blocks run out, the default scheduler of
TensorRT-LLM admits a request only when there is room for its whole output; this model ends the oldest active request
early.
"""

from __future__ import annotations

from ..core.pool import Pool
from ..demand import BlockDemand
from ..policies import make
from ..policies.base import Context


def build(demand: BlockDemand, context: Context, policy: str = "lru") -> Pool:
    """Build TensorRT-LLM's cache of `context.capacity` blocks, with the policy lru or priority.

    InputError if the trace has no priorities, or one is not from 0 to 100.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    return Pool(context, demand, make(policy, context), total=True, leaf_first=True)
