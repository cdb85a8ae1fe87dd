"""LMCache's store in host memory: chunks of 256 tokens under one key each, with an eviction order of its own.

Semantics: LMCache 0.5.6. Plainly, one process's engine and its LocalCPUBackend (lmcache/v1/cache_engine.py,
storage_backend/local_cpu_backend.py and cache_policy/). With the watermark, the multi-process server's L1 memory
(lmcache/v1/distributed/l1_manager.py, storage_controllers/eviction_controller.py): when 80 % is in use it evicts 20 %
of its chunks, by a clock that looks once a second; its order is lru, and a request that does not fit is not stored.
Checked: against that code, unmodified, over its own memory allocators, each request's hits, in each order and with the
watermark: on random traces (tests/clients/test_lmcache_cache.py, tests/vectors/engine_lmcache.json), one request at a
time, and in five settings of the Mooncake conversation trace. For the watermark a request's calls are ours, as we read
its lookup and transfer modules.

What differs from a serving engine's own cache: only full chunks are stored. A lookup pins what it hits, but only until
it is loaded, so live requests hold nothing, and schedules change nothing but when the watermark sees a request's end.
New chunks are stored root first (with the watermark tail first), so lru may let a root go and leave chunks that nobody
finds. A prompt may be hit to its last token, which is computed again all the same. Any capacity that holds a chunk will
do: what does not fit is not stored. Outputs are not stored (save_decode_cache is off by default).

Chunks and blocks: the trace's blocks must divide 256 tokens; where they are larger, a chunk is a block, as if LMCache's
chunk_size were that. Capacities and hits are in the trace's blocks. The watermark's clock ticks at whole seconds of the
trace, so one without times never evicts.

What stays out: the serving engine's own cache in front of this one, disks and remote stores behind it, prompts that are
prefilled, and stored, in parts, and the server's order ARC.
"""

from __future__ import annotations

from ..._base.errors import UsageError
from ..core.chunks import Chunks
from ..demand import Jobs
from ..policies import make
from ..policies.base import Context

CHUNK = 256  # tokens
WATERMARKS = ("off", "on")


def build(jobs: Jobs, context: Context, policy: str = "lru", *, watermark: str = "off") -> Chunks:
    """LMCache's store of `context.capacity` blocks for the jobs, with one of its eviction orders.

    UsageError where the trace's blocks do not make up a chunk, the capacity holds none, or the order and the watermark
    do not go together.

    >>> from kvtrace.cache.demand import jobs
    >>> from kvtrace.trace.building import toy
    >>> asked = jobs(toy("0 1 2", "0 1 2", block_size=128))
    >>> store = build(asked, Context(blocks=asked.blocks, capacity=4, jobs=asked))
    >>> store.advance(2)
    >>> store.hits.tolist()
    [0, 2]
    """
    if watermark not in WATERMARKS:
        raise UsageError(f"there is no watermark {watermark!r}. Try {' or '.join(WATERMARKS)}.")
    if watermark == "on" and policy != "lru":
        raise UsageError(f"LMCache's order is lru where a watermark triggers it, not {policy}. Try watermark off.")
    factor = blocks_a_chunk(jobs.trace.block_size)
    return Chunks(context, jobs, make(policy, context), factor, watermark == "on")


def blocks_a_chunk(block_size: int) -> int:
    """How many of a trace's blocks make a chunk; UsageError where that is no whole number.

    >>> blocks_a_chunk(16), blocks_a_chunk(512)
    (16, 1)
    """
    if block_size < CHUNK and CHUNK % block_size:
        raise UsageError(
            f"LMCache's chunks of {CHUNK} tokens are no whole number of the trace's blocks of {block_size}. "
            "Try a trace with blocks of 16 or 32, or another engine."
        )
    return max(1, CHUNK // block_size)
