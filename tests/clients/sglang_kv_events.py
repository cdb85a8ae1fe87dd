"""SGLang: its own prefix cache serves requests, and its own ZmqEventPublisher publishes the KV events.

Run in SGLang's environment as kv_publishing.py says. A case may have `answer_s`, how much later a request ends. The
answer has SGLang's version, hits, early frees, and how many pages the cache has `cached` at the end. The cache, events,
hashes, encoding and sockets are SGLang's, unmodified; ours is the schedule.
"""

import kv_publishing
import sglang_cache
from sglang.srt.disaggregation.kv_events import KVEventBatch, ZmqEventPublisher


class Publishing(sglang_cache.Server):
    """A server that publishes what its cache did, after each request that it admits, extends or ends."""

    def __init__(self, case, published):
        super().__init__(case)
        self.times, self.published, self.answer_s = case["times"], published, case.get("answer_s", 0)

    def components(self, case):
        return super().components(case) | {"enable_kv_cache_events": True}

    def admit(self, row):
        hit = super().admit(row)
        if hit is not None:
            request = self.live[row]
            prompt = len(request.origin_input_ids)
            for i in range(prompt, len(request.full_untruncated_fill_ids)):  # tokens of nobody else
                request.full_untruncated_fill_ids[i] = 1_000_000 + row * 1_000 + i - prompt
            self.publish(self.times[row])
        return hit

    def grow(self, row):
        grown = super().grow(row)
        self.publish(self.times[row])
        return grown

    def finish(self, row):
        super().finish(row)
        self.publish(max(self.times[row], self.published.latest) + self.answer_s)

    def publish(self, seconds):
        events = self.cache.take_events()
        if events:
            self.published.publish(seconds, events)


def serve(case, published):
    """What to print of a case."""
    server = Publishing(case, published)
    served = sglang_cache.serve(case, lambda case: server)
    return served | {"cached": int(server.cache.evictable_size()) // case["page_size"]}


if __name__ == "__main__":
    kv_publishing.run(
        lambda endpoint, replay: ZmqEventPublisher(0, endpoint, replay),
        lambda seconds, events, rank: KVEventBatch(ts=seconds, events=events, attn_dp_rank=rank),
        serve,
    )
