"""LMCache's store in host memory: chunks of 256 tokens with one key each, and its own eviction policies.

Semantics: LMCache 0.5.6. Without the watermark, the engine of one process and its LocalCPUBackend
(lmcache/v1/cache_engine.py, storage_backend/local_cpu_backend.py and cache_policy/). With the watermark, the L1 memory
of the multi-process server (lmcache/v1/distributed/l1_manager.py, storage_controllers/eviction_controller.py): once a
second it checks its use, and at 80 % it evicts 20 % of its chunks by lru; it does not store a request that does not
fit. Checked: against the unmodified code with its own memory allocators: each request's hits, with each policy and with
the watermark, on random traces with the serial schedule (tests/clients/test_lmcache_cache.py,
tests/vectors/engine_lmcache.json) and in five settings of the Mooncake conversation trace. For the watermark we wrote a
request's calls ourselves, after its lookup and transfer modules.

Differences to the cache of a serving engine: LMCache stores full chunks only. A lookup pins its hits until they are
loaded, so active requests pin nothing, and a schedule only decides when the watermark sees the end of a request. New
chunks are stored root first (with the watermark tail first), so lru may evict a root and leave chunks that cannot be
hit. A prompt may hit up to its last token, which is computed again. Any capacity of a chunk or more is valid: LMCache
does not store what does not fit. Outputs are not stored (save_decode_cache is off by default).

Chunks and blocks: the block size of the trace must divide 256 tokens. If it is larger, a chunk is a block, as if
LMCache's chunk_size had that value. Capacities and hits are in blocks of the trace. The clock of the watermark ticks at
whole seconds of the trace, so a trace without times never evicts.

Not modelled: the serving engine's own cache above this one, disks and remote stores below it, chunked prefill with
storage in parts, and the server's policy ARC.
"""

from __future__ import annotations

from ..._base.errors import UsageError
from ..core.pool import Chunks
from ..demand import BlockDemand
from ..policies import make
from ..policies.base import Context

CHUNK = 256  # tokens


def build(demand: BlockDemand, context: Context, policy: str = "lru", *, watermark: str = "off") -> Chunks:
    """Build LMCache's store of `context.capacity` blocks, with one of its eviction policies.

    UsageError if the trace's block size does not divide a chunk, the capacity is below one chunk, or the watermark does
    not support the policy.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "0 1 2", block_size=128))
    >>> store = build(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> store.advance(2)
    >>> store.hits.tolist()
    [0, 2]
    """
    if watermark == "on" and policy != "lru":
        raise UsageError(f"--watermark on supports --policy lru, not {policy}. Try --watermark off.")
    factor = blocks_per_chunk(demand.trace.block_size)
    return Chunks(context, demand, make(policy, context), factor, watermark == "on")


def blocks_per_chunk(block_size: int) -> int:
    """Blocks of a trace in one chunk; UsageError if the block size does not divide a chunk.

    >>> blocks_per_chunk(16), blocks_per_chunk(512)
    (16, 1)
    """
    if block_size < CHUNK and CHUNK % block_size:
        raise UsageError(
            f"A chunk of LMCache has {CHUNK} tokens, which the trace's block size of {block_size} does not divide. "
            "Try a trace with blocks of 16 or 32 tokens, or another --engine."
        )
    return max(1, CHUNK // block_size)
