"""SGLang: its own HiCache serves requests; run in SGLang's environment as CASES (JSON lines).

A case is one of sglang_cache.py (with SGLang's default tree) that also says host (pages of the host pool),
write_policy (SGLang's --hicache-write-policy) and core (rust or python). With `storage` there is a storage backend
"file" in a folder of the case: storage says capacity (pages, or null) and prefetch_threshold (tokens), and each request
may say its instance; all instances share the folder. Prints, a case a line, each request's hit pages by source (device,
host, storage), the number of early frees, and the pages that the device evicted.

SGLang's, unmodified: UnifiedRadixCache with its host tier and both tree cores, HybridCacheController with its threads,
the host pool and its allocator, HiCacheFile with its LRU. Ours are the schedule, the stand-ins of sglang_cache.py, the
copies between device and host, which move nothing and are done at once, and one LRU for a folder that instances share.
"""

import importlib.metadata
import json
import sys
import tempfile
import time

import sglang_cache as plain  # the file beside this one
import sglang_scheduler as imported
import torch
from sglang.srt import runtime_context
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import CacheRequestHandle
from sglang.srt.mem_cache import l2_transfer
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host import base, common
from sglang.srt.mem_cache.radix_cache import RadixKey

common._cuda_host_register = lambda *_, **__: None
common._cuda_host_unregister = base._cuda_host_unregister = lambda *_, **__: None
base.host_memory_budget_bytes = lambda requested: requested  # SGLang keeps 10 GB of the machine's memory free


class Done:
    """The end of a copy that took no time."""

    def query(self):
        return True

    def synchronize(self):
        pass


def copied(self, transfers, **_):
    return l2_transfer.TransferCompletion(Done(), Done(), False)


l2_transfer.L2TransferEngine.submit_device_to_host = copied
l2_transfer.L2TransferEngine.submit_host_to_device = copied


class Server(plain.Server):
    """One instance: sglang_cache's server with a host tier, whose transfers end before the next decision."""

    def __init__(self, case, folder=None):
        self.case, self.storage = case, case.get("storage")
        page, device, host = case["page_size"], case["capacity"], case["host"]
        settings = {
            "page_size": page, "chunked_prefill_size": -1, "max_running_requests": 1,
            "enable_hierarchical_cache": True, "hicache_write_policy": case["write_policy"],
            # the pool has one page more than this share of the device's
            "hicache_ratio": ((host - 1) * page + 0.5) / (device * page), "hicache_mem_layout": "layer_first",
        }  # fmt: skip
        if self.storage:
            extra = {"prefetch_threshold": self.storage["prefetch_threshold"], "eviction_ratio": 1.0}
            if self.storage["capacity"]:
                extra["max_size"] = self.storage["capacity"] * page * PAGE_BYTES
            settings |= {
                "hicache_storage_backend": "file", "hicache_storage_backend_extra_config": json.dumps(extra),
                "hicache_storage_prefetch_policy": "wait_complete",
            }  # fmt: skip
            envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.set(folder)
        imported.publish({"settings": settings})
        runtime_context.get_parallel().override_permanently(tp_rank=0, tp_size=1, pp_size=1)
        envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.set(case.get("core", "rust"))
        super().__init__(case)
        self.evicted, self.evict = 0, self.cache._evict
        self.cache._evict = self.count_evicted
        assert self.host_pages() == host

    def pools(self, case):
        super().pools(case)
        size = case["capacity"] * self.page
        self.kv = MHATokenToKVPool(
            size=size, page_size=self.page, dtype=torch.float16, head_num=1, head_dim=1, layer_num=1, device="cpu",
            enable_memory_saver=False,
        )  # fmt: skip
        self.allocator._kvcache = self.kv

    def made(self, params):
        cache = imported.UnifiedRadixCache(params)
        cache.init_hicache(runtime_context.get_server_args(), params)
        cache.cache_controller.storage_host_pool.pin_memory = False
        return cache

    def host_pages(self):
        return self.cache.cache_controller.mem_pool_host.available_size() // self.page

    def settle(self):
        """Let all transfers end, as SGLang sees it at the beginning of a step."""
        cache = self.cache
        while True:
            cache.check_hicache_events()
            if not (cache.ongoing_write_through or cache.ongoing_load_back or cache.ongoing_backup):
                break
            time.sleep(0.0001)
        if self.storage:
            while cache.cache_controller.host_mem_release_queue.qsize():
                cache.check_hicache_events()

    def count_evicted(self, *given, **named):
        result = self.evict(*given, **named)
        self.evicted += result.num_tokens_evicted
        return result

    def room(self, pages):
        """As in sglang_cache; evicts again when copies that are being stored keep the host full."""
        need = pages * self.page
        if self.allocator.available_size() + self.cache.evictable_size() < need:
            return None
        while self.allocator.available_size() < need:
            self.cache.evict(EvictParams(num_tokens=need - self.allocator.available_size()))
            if self.allocator.available_size() < need:
                self.settle()
        return self.allocator.alloc(need)

    def key(self, tokens):
        return RadixKey(tokens, limit=max(len(tokens) - 1, 0))

    def fetch(self, row, tokens):
        """What SGLang fetches from storage while a request waits: the (tokens, first token) that came."""
        cache = self.cache
        match = cache.match_prefix(MatchPrefixParams(key=self.key(tokens)))
        node, matched = match.last_host_node, match.device_prefix_len + match.host_hit_length
        if not (cache.is_backuped(node) or cache.is_root(node)):
            return 0, None
        handle = CacheRequestHandle(str(row), 0)
        cache.prefetch_from_storage(
            handle, node, tokens[matched : max(len(tokens) - 1, 0)], cache.get_last_hash_value(node), None,
            matched_prefix_tokens=tokens[:matched],
        )  # fmt: skip
        while not cache.check_prefetch_progress(handle):
            cache.check_hicache_events()
            time.sleep(0.0001)
        self.settle()
        return cache.pop_prefetch_loaded_span(handle)

    def admit(self, row):
        """Hit pages by source (device, host, storage), or None where there is no room."""
        wanted, cache = self.requests[row], self.cache
        tokens = plain.array("q", wanted["tokens"])
        loaded, first = self.fetch(row, tokens) if self.storage else (0, None)
        match = cache.match_prefix(MatchPrefixParams(key=self.key(tokens)))
        device = match.device_prefix_len
        need = self.pages(len(tokens)) - device // self.page
        lock, node = cache.lock(match.last_device_node), match.last_device_node
        if self.allocator.available_size() + cache.evictable_size() < need * self.page:
            cache.unlock(lock)
            return None
        host = 0
        if match.host_hit_length > 0:
            req = plain.SimpleNamespace(
                last_node=node, rid=str(row), swa_host_hit_length=0, mamba_host_hit_length=0,
                kv=plain.SimpleNamespace(mamba_pool_idx=None),
            )  # fmt: skip
            pin = cache.inc_host_lock_ref(match.best_match_node)
            host, node = cache.init_load_back(
                InitLoadBackParams(
                    best_match_node=match.best_match_node, host_hit_length=match.host_hit_length, req=req
                )
            )
            cache.dec_host_lock_ref(match.best_match_node, pin.to_dec_params())
            cache.ready_to_load_host_cache()
            held = cache.lock(node)
            cache.unlock(lock)
            lock = held
        slots = self.room(need - host // self.page)
        self.settle()
        self.open(row, tokens, device + host, node, lock, slots)
        self.settle()
        end = device + host
        from_storage = max(0, min(end, first + loaded) - first) if loaded else 0
        return [device // self.page, (host - from_storage) // self.page, from_storage // self.page]

    def finish(self, row):
        super().finish(row)
        self.settle()

    def grow(self, row):
        done = super().grow(row)
        self.settle()
        return done


PAGE_BYTES = 4  # of a token: one layer, one head of one number, keys and values


def serve(case):
    """Each request's hit pages by source, the early frees and the evicted pages."""
    with tempfile.TemporaryDirectory() as folder:
        servers = [Server(case, folder) for _ in range(1 + max(row.get("instance", 0) for row in case["requests"]))]
        for each in servers[1:]:
            first, other = (one.cache.cache_controller.storage_backend for one in (servers[0], each))
            if first is not None:
                other._evictor = first._evictor
        hits, early = plain.run(case, servers)
        evicted = [each.evicted // case["page_size"] for each in servers]
        for each in servers:
            each.cache.shutdown()
    return {"hits": hits, "early_frees": early, "evicted": evicted, "version": importlib.metadata.version("sglang")}


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
