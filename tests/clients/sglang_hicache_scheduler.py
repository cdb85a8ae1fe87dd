"""SGLang: its own Scheduler and HiCache, under a clock of ours; run in SGLang's environment as CASES (JSON lines).

A case is one of sglang_scheduler.py that also says host (tokens of the host pool, whole pages), write_policy, core, and
load_s and store_s (seconds a token of the copies from and to the host). A copy waits for the forward passes that were
launched before it, as SGLang's fences have it, and for the copy before it in its direction; a pass whose prefix is
loaded ends when both it and the copy have: SGLang waits layer by layer. Prints what sglang_scheduler.py prints, and for
each request the tokens that were loaded from the host.
"""

import json
import sys

import sglang_hicache as tiers  # the files beside this one
import sglang_scheduler as plain
import torch
from sglang.srt import runtime_context
from sglang.srt.environ import envs
from sglang.srt.mem_cache import l2_transfer
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class Copied:
    """The end of a copy; who waits for it moves the clock."""

    def __init__(self, server, time):
        self.server, self.time = server, time

    def query(self):
        return self.time <= self.server.now

    def synchronize(self):
        self.server.now = max(self.server.now, self.time)


def copy(link):
    def submit(engine, transfers, **_):
        server = engine.server
        tokens = sum(len(transfer.device_indices) for transfer in transfers)
        begin = max(server.now, server.free, server.links[link])
        server.links[link] = begin + tokens * server.case[link]
        if link == "load_s":
            server.loaded_at = server.links[link]
        return l2_transfer.TransferCompletion(Copied(server, begin), Copied(server, server.links[link]), False)

    return submit


l2_transfer.L2TransferEngine.submit_device_to_host = copy("store_s")
l2_transfer.L2TransferEngine.submit_host_to_device = copy("load_s")


class Server(plain.Server):
    """sglang_scheduler's server with a host tier."""

    def __init__(self, case):
        self.links, self.loaded_at = {"load_s": 0.0, "store_s": 0.0}, 0.0
        page = case["settings"]["page_size"]
        case["settings"] |= {
            "enable_hierarchical_cache": True, "hicache_write_policy": case["write_policy"],
            "hicache_ratio": (case["host"] - page + 0.5) / case["capacity"], "hicache_mem_layout": "layer_first",
        }  # fmt: skip
        envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.set(case.get("core", "rust"))
        super().__init__(case)
        self.enable_hierarchical_cache = True
        self.loaded = [0] * len(self.rows)

    def pools(self, capacity):
        super().pools(capacity)
        self.token_to_kv_pool_allocator._kvcache = MHATokenToKVPool(
            size=capacity, page_size=self.page_size, dtype=torch.float16, head_num=1, head_dim=1, layer_num=1,
            device="cpu", enable_memory_saver=False,
        )  # fmt: skip
        cache = self.tree_cache
        params = plain.CacheInitParams(
            disable=False, req_to_token_pool=self.req_to_token_pool, page_size=self.page_size,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator, tree_components=(plain.ComponentType.FULL,),
        )  # fmt: skip
        cache.init_hicache(runtime_context.get_server_args(), params)
        cache.cache_controller.l2_transfer_engine.server = self
        assert cache.cache_controller.mem_pool_host.available_size() == self.case["host"]

    def run_batch(self, batch, pp_proxy_tensors=None):
        for req in batch.reqs:
            if batch.forward_mode.is_extend() and self.cached[req.row] < 0:
                self.loaded[req.row] = req.host_loaded_length
        result = super().run_batch(batch, pp_proxy_tensors)
        if batch.hicache_consumer_index >= 0:
            self.free = max(self.free, self.loaded_at)
            result.copy_done = plain.Done(self, self.free)
        return result

    def process_batch_result(self, batch, result):
        super().process_batch_result(batch, result)
        self.tree_cache.flush_pending_backups()

    def copies_until(self):
        """When the copies that are under way end."""
        controller = self.tree_cache.cache_controller
        acks = [*controller.ack_write_queue, *controller.ack_load_queue]
        return [ack.finish_event.time for ack in acks if ack.finish_event.time > self.now]

    def on_idle(self):
        """As before; an idle server sees copies end."""
        ends = self.copies_until()
        arrival = self.rows[self.next]["arrival"] if self.next < len(self.rows) else None
        if ends and (arrival is None or min(ends) < arrival):
            if not self.running_batch.reqs and self.chunked_req is None and not self.waiting_queue:
                self.new_token_ratio_tracker.reset()
            self.now = min(ends)
            return
        super().on_idle()


def serve(case):
    """What sglang_scheduler's `serve` returns, with the loaded tokens of each request."""
    made = []

    class Kept(Server):
        def __init__(self, case):
            super().__init__(case)
            made.append(self)

        def event_loop_normal(self):
            super().event_loop_normal()
            self.tree_cache.check_hicache_events()

        def event_loop_overlap(self):
            super().event_loop_overlap()
            self.tree_cache.check_hicache_events()

    plain.Server = Kept
    answer = plain.serve(case)
    return answer | {"loaded": made[0].loaded}


if __name__ == "__main__":
    assert tiers
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
