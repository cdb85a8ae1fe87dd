"""vLLM's scheduler with cache groups, step by step, in plain Python: vllm_scheduler.py over grouped_cache.py.

`serve(case)` takes the cases of tests/clients/vllm_scheduler.py that have groups.
"""

from __future__ import annotations

from tests.reference import grouped_cache, vllm_scheduler
from tests.reference.grouped_cache import NULL


class Groups(grouped_cache.Groups):
    """The cache of a scheduler, which knows how many tokens of a request are known."""

    def known(self, request):
        return request.live.tokens


class Scheduler(vllm_scheduler.Scheduler):
    def __init__(self, case):
        super().__init__(case)
        groups = [grouped_cache.Group(group["kind"], group["block_size"], group["window"]) for group in case["groups"]]
        chunk = min(self.budget, self.threshold) if self.threshold else self.budget
        self.cache = Groups(
            case["capacity"], groups, case["block_size"], case["retention_interval"], chunk, case["internal_checkpoint"]
        )
        self.flying = self.budget * (2 if self.is_async else 1)  # the most tokens of steps whose output is not known

    @property
    def used(self):
        return len(self.cache.pins) - len(self.cache.queue)

    def request_of(self, live):
        """The request in the cache. It forgets all but the junction when it gives up its blocks."""
        if not hasattr(live, "request"):
            live.request = grouped_cache.Request(live.hashes, live.prompt)
            live.request.live = live
        return live.request

    def plan(self):
        self.cache.listed_states.clear()
        return super().plan()

    def find(self, live):
        return self.cache.look_up(self.request_of(live), live.tokens - 1)

    def shortened(self, live, start, chunk):
        return self.cache.aligned_end(self.request_of(live), start, start + chunk, live.tokens) - start

    def admits(self, live, hits, computed, chunk):
        request, groups = live.request, self.cache.groups
        for g, group in enumerate(groups):
            if group.kind == "state" and hits[g] and self.cache.holds[hits[g][-1]] in self.cache.listed_states:
                return False  # a state that is computed in this step
        free = len(self.cache.queue) - (self.watermark if self.running else 0)
        if self.whole and self.reserved(request, hits, computed, live.tokens) > free:
            return False
        return self.cache.missing(request, hits, computed, computed + chunk) <= free

    def reserved(self, request, hits, computed, tokens):
        """The blocks for all tokens of a request, of which windows and chunks hold a part at a time."""
        need = 0
        for g, group in enumerate(self.cache.groups):
            places = -(-tokens // group.size)
            if group.kind == "window":
                places = min(places, -(-(group.window - 1 + self.flying) // group.size) + 1)
            elif group.kind == "chunk":
                places = min(places, -(-(group.window + self.flying) // group.size))
            new = max(0, places - len(hits[g]))
            if group.kind == "state":
                new = min(new, 1 + (self.cache.checkpoint_place(request, group, computed, tokens) >= 0))
            kept = hits[g][self.cache.skipped(group, computed) :]
            need += new + sum(self.cache.pins[block] == 0 for block in kept if block is not NULL)
        return need

    def start(self, live, hits, computed):
        self.cache.start(live.request, hits, computed)

    def room(self, live, chunk):
        """Whether a chunk fits, once what the steps that have ended left behind is free."""
        self.cache.retire(live.request, live.computed - live.flight)
        end = live.computed + chunk
        return self.cache.missing(live.request, None, live.computed, end) <= len(self.cache.queue)

    def allocate(self, live, chunk):
        self.cache.extend(live.request, live.computed, live.computed + chunk)
        self.publish(live, min(live.computed + chunk, live.tokens))

    def publish(self, live, tokens):
        self.cache.publish(live.request, tokens)

    def release(self, live):
        request = live.request
        self.cache.finish(request)
        request.cached, request.last_state, request.grows = {}, -1, False


def serve(case, states=None):
    """As vllm_scheduler.serve."""
    return vllm_scheduler.serve(case, states, Scheduler)
