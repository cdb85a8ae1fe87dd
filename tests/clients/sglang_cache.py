"""SGLang: its own prefix caches and page allocators serve requests; run in SGLang's environment as CASES (a JSON file).

A case says tree (unified: UnifiedRadixCache with the Rust core, the default of 0.5.23; radix: RadixCache), page_size,
capacity (pages), policy, grow, a schedule (kind, window, arrival, end) and requests: tokens (of the prompt), more
(tokens generated and cached) and priority; `bigram` is SGLang's is_eagle. Prints, a case a line, each request's hit
pages and the number of early frees. The caches, their nodes, locks, eviction orders and allocators are SGLang's,
unmodified; ours are the schedule and the stand-ins for a request and for the rest of SGLang, which the caches need only
by name.
"""

import importlib.metadata
import itertools
import json
import sys
from array import array
from types import SimpleNamespace

import sglang_scheduler as imported  # the file beside this one: SGLang without the packages that are absent
import torch
from sglang.srt.mem_cache import radix_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams

# a clock that never shows the same time twice
radix_cache.time = SimpleNamespace(monotonic=itertools.count(1).__next__, perf_counter=lambda: 0.0)
imported.publish({"settings": {"page_size": 1, "chunked_prefill_size": -1, "max_running_requests": 1}})


class Rows:
    """Which slots hold each request's tokens: what SGLang's ReqToTokenPool does, with rows that grow."""

    def __init__(self):
        self.req_to_token = Table()

    def write(self, where, slots):
        row, span = where
        self.req_to_token[row][span] = slots


class Table(dict):
    """Indexed by a row, or by a row and a span."""

    def __getitem__(self, where):
        row, span = where if isinstance(where, tuple) else (where, slice(None))
        return super().__getitem__(row)[span]


class Kv(SimpleNamespace):
    """The fields of a request that the cache reads and writes."""

    def get_evicted_seqlen(self, component):
        return 0

    def swa_dead_lo(self, page_size):
        return self.cache_protected_len


class Server:
    """One cache over an allocator of so many pages, and the verbs admit, grow and finish."""

    def __init__(self, case):
        self.case, self.page, self.grows = case, case["page_size"], case["grow"]
        self.live, self.requests = {}, case["requests"]
        self.pools(case)
        params = imported.CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self.page,
            eviction_policy=case["policy"],
            is_eagle=case.get("bigram", False),
            **self.components(case),
        )
        self.cache = self.made(params)

    def made(self, params):
        kind = imported.UnifiedRadixCache if self.case["tree"] == "unified" else radix_cache.RadixCache
        return kind(params)

    def pools(self, case):
        size = case["capacity"] * self.page
        settings = (torch.int64, "cpu", None, False)
        if self.page == 1:
            self.allocator = imported.TokenToKVPoolAllocator(size, *settings)
        else:
            self.allocator = imported.PagedTokenToKVPoolAllocator(size, self.page, *settings)
            self.allocator.use_triton_kernels = False
        self.rows = Rows()

    def components(self, case):
        return {"tree_components": (imported.ComponentType.FULL,)}

    def pages(self, tokens):
        return -(-tokens // self.page)

    def room(self, pages):
        """Slots of so many pages, evicting for them, or None with nothing evicted."""
        need = pages * self.page
        if self.allocator.available_size() + self.cache.evictable_size() < need:
            return None
        if self.allocator.available_size() < need:
            self.cache.evict(EvictParams(num_tokens=need - self.allocator.available_size()))
        slots = self.allocator.alloc(need)
        assert len(slots) == need
        return slots

    def admit(self, row):
        """Hit pages, or None where there is no room."""
        wanted = self.requests[row]
        tokens = array("q", wanted["tokens"])
        # at least one token must be computed
        key = radix_cache.RadixKey(tokens, limit=max(len(tokens) - 1, 0))
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        hit = match.device_prefix_len
        lock = self.cache.lock(match.last_device_node)
        slots = self.room(self.pages(len(tokens)) - hit // self.page)
        if slots is None:
            self.cache.unlock(lock)
            return None
        self.open(row, tokens, hit, match.last_device_node, lock, slots)
        return hit // self.page

    def open(self, row, tokens, hit, node, lock, slots):
        """Give a request its slots after those of `node`, and cache its prompt."""
        wanted = self.requests[row]
        kv = Kv(req_pool_idx=row, cache_protected_len=hit, cache_inserted_len=0, swa_evict_floor=0)
        self.rows.req_to_token[row] = torch.cat((self.cache.path_device_indices(node), slots))
        more = array("q", ((1 << 40) + row * 100_000 + i for i in range(wanted["more"])))  # tokens of nobody else
        self.live[row] = SimpleNamespace(
            kv=kv, lock=lock, last_node=node, origin_input_ids=tokens, extra_key=None,
            cache_salt=None, full_untruncated_fill_ids=tokens + more, priority=wanted["priority"], held=len(tokens),
            rid=str(row), session=None, session_id=None, kv_rotation_base=None, finished=lambda: False,
        )  # fmt: skip
        self.cache.checkpoint(self.live[row], up_to=len(tokens))

    def grow(self, row):
        """True, or False where there is no room."""
        request = self.live[row]
        held = len(request.full_untruncated_fill_ids)
        slots = self.room(self.pages(held) - self.pages(request.held))
        if slots is None:
            return False
        self.rows.req_to_token[row] = torch.cat((self.rows.req_to_token[row], slots))
        request.held = held
        return True

    def close(self):
        """Check that nothing is locked or lost after the last request."""
        assert self.cache.protected_size() == 0
        assert self.cache.evictable_size() + self.allocator.available_size() == self.allocator.size

    def finish(self, row):
        request = self.live.pop(row)
        self.cache.checkpoint(request, up_to=request.held)
        self.cache.free_kv_row(request.kv, [(request.kv.cache_protected_len, request.held)])
        self.cache.unlock(request.lock)
        del self.rows.req_to_token[row]


def serve(case, kind=Server):
    """Each request's hit pages and how many requests were freed early."""
    hits, early = run(case, [kind(case)])
    return {"hits": hits, "early_frees": early, "version": importlib.metadata.version("sglang")}


def run(case, servers):
    """Serve the requests by the case's schedule, each by the server of its instance; (hits, early frees)."""
    schedule, hits, early = case["schedule"], [], 0
    instance = [row.get("instance", 0) for row in case["requests"]]
    ends = schedule.get("end", [])
    by_end = sorted(range(len(ends)), key=lambda row: (ends[row], row))

    def free_oldest(but):
        server.finish(min(row for row in server.live if row != but))

    for row in range(len(case["requests"])):
        server = servers[instance[row]]
        if schedule["kind"] == "concurrency":
            while len(server.live) >= schedule["concurrency"]:
                free_oldest(row)
        elif schedule["kind"] == "open-loop":
            for ended in by_end:
                if ended in servers[instance[ended]].live and ends[ended] <= schedule["arrival"][row]:
                    servers[instance[ended]].finish(ended)
        hit = server.admit(row)
        while hit is None:
            free_oldest(row)
            early += 1
            hit = server.admit(row)
        hits.append(hit)
        while server.grows and not server.grow(row):
            free_oldest(row)
            early += 1
        if schedule["kind"] == "serial":
            server.finish(row)
    for server in servers:
        for row in sorted(server.live):
            server.finish(row)
        server.close()
    return hits, early


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
