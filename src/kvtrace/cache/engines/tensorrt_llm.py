"""TensorRT-LLM's prefix cache: a tree of blocks whose idle leaves go by priority, then by last use.

Semantics: TensorRT-LLM 1.3, its C++ cache manager, V1 (cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp,
evictionPolicy.cpp) and its page "KV Cache System".
Checked: read, not run. It is the founding cache's pool, leaf-first, whose plain twin is tests/reference/pool.py.

A prompt's last token is always computed, so of n tokens at most n - 1 are matched. A request's blocks are released tail
first. Its blocks are 32 tokens by default; here a block is the trace's. Order lru: all priorities are the default 35.
Order priority: the trace's extra column of that name, 0 to 100, lowest first; priority:10m lets them fall back to 35.

Offload to the host: a block that must leave the GPU with a priority of 30 or more moves to the host's pool, and comes
back when it is hit. For the order lru that is a cache in two exclusive tiers: `--tiers hbm=5000,dram=50000`, which runs
the founding cache, where a prompt's last block may hit too. With priorities it is not modelled.

What stays out: part of a block that matches is reused as well, while hits are whole blocks; where a parent has a lower
priority than its children, all of them are forgotten with it, while here it waits for them; priorities for a range of
tokens or for outputs; attention windows, and the newer manager (V2) that some models take. Its default scheduler admits
a request only when there is room for its whole output, where we free the oldest live one early.
"""

from __future__ import annotations

from ..core.pool import Pool
from ..demand import Jobs
from ..policies import make
from ..policies.base import Context


def build(jobs: Jobs, context: Context, policy: str = "lru") -> Pool:
    """TensorRT-LLM's cache of `context.capacity` blocks for the jobs, in the order lru or priority.

    InputError where there are no priorities, or they are not from 0 to 100.

    >>> from kvtrace.cache.demand import jobs
    >>> from kvtrace.trace.building import toy
    >>> asked = jobs(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(asked, Context(blocks=asked.blocks, capacity=4, jobs=asked))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    return Pool(context, jobs, make(policy, context), total=True, leaf_first=True)
