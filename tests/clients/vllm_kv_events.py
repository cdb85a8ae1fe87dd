"""vLLM: its own KVCacheManager serves requests, and its own ZmqEventPublisher publishes the KV events.

Run in vLLM's environment as kv_publishing.py says. A case may have `report` (full: hits are published, too). The
answer has vLLM's version, hits, early frees, and how many hashes the pool has `cached` at the end. Events, hashes,
encoding and sockets are vLLM's, unmodified; ours is the schedule.
"""

import kv_publishing
import vllm_cache
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash


class Publishing(vllm_cache.Server):
    """A server that publishes what its cache did, after each request that it admits."""

    def __init__(self, case, published):
        super().__init__(case)
        self.manager.enable_kv_cache_events = True
        self.manager.block_pool.enable_kv_cache_events = True
        self.report, self.times, self.published = case.get("report"), case["times"], published

    def admit(self, row):
        lookup = self.manager.get_computed_blocks

        def reporting(request, *rest):
            request.kv_cache_report_mode = self.report
            return lookup(request, *rest)

        if self.report:
            self.manager.get_computed_blocks = reporting
        hit = super().admit(row)
        self.manager.get_computed_blocks = lookup
        if hit is not None:
            self.publish(self.times[row])
        elif self.report:
            self.manager.take_events()  # the hits of a request that waits
        return hit

    def grow(self, row):
        request, more = self.live[row], self.rows[row]["more"]
        if more and request.num_output_tokens == 0:
            request.append_output_token_ids([1_000_000 + row * 1_000 + i for i in range(more)])  # of nobody else
        grown = not more or self.manager.allocate_slots(request, more) is not None
        self.publish(self.times[row])
        return grown

    def publish(self, seconds):
        events = self.manager.take_events()
        if events:
            self.published.publish(seconds, events)


def serve(case, published):
    """What to print of a case."""
    server = Publishing(case, published)
    served = vllm_cache.serve(case, lambda case: server)
    return served | {"cached": len(server.manager.block_pool.cached_block_hash_to_block._cache)}


if __name__ == "__main__":
    init_none_hash(sha256)
    kv_publishing.run(
        lambda endpoint, replay: ZmqEventPublisher(0, endpoint, replay),
        lambda seconds, events, rank: KVEventBatch(ts=seconds, events=events, data_parallel_rank=rank),
        serve,
    )
