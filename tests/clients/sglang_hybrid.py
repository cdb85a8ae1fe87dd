"""SGLang: its own tree and pools for hybrid models serve requests; run in SGLang's environment as CASES (a JSON file).

A case is as in sglang_cache.py (without grow; `tree` names the core of the tree: rust, the default of 0.5.23, or
python), and says which second kind of layers the model has: `window` (tokens) with `second` (pages of the pool of
sliding windows). Prints, a case a line, each request's hit pages and the number of early frees. SGLang's, unmodified:
UnifiedRadixCache with its components, the allocators of both pools, the record of a request, the frees of slots that
leave a window. Ours are the schedule, and the stand-ins for a request and for the memory behind the pools.
"""

import json
import sys
from array import array
from types import SimpleNamespace

import sglang_cache as plain  # the file beside this one: the cache of full attention
import sglang_scheduler as imported
import torch
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.radix_cache import RadixKey

FULL, SWA, MAMBA = (getattr(imported.ComponentType, name) for name in ("FULL", "SWA", "MAMBA"))


class Memory(BaseSWAKVPool):
    """Stands for the keys and values: it knows which slot of the windows' pool belongs to a slot of the full pool."""

    def __init__(self):
        pass

    def register_mapping(self, full_to_swa_index_mapping):
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices):
        return self.full_to_swa_index_mapping[kv_indices]


Memory.__abstractmethods__ = frozenset()  # its other methods move bytes


class Windows(plain.Server):
    """A model with layers of full attention and layers with a sliding window."""

    def pools(self, case):
        sizes = case["capacity"] * self.page, case["second"] * self.page
        self.allocator = SWATokenToKVPoolAllocator(*sizes, self.page, torch.int64, "cpu", Memory(), False)
        self.rows = plain.Rows()

    def components(self, case):
        return {
            "tree_components": (FULL, SWA),
            "sliding_window_size": case["window"],
            "tree_core_backend": case["core"],
        }

    def room(self, pages):
        """Slots of so many pages in both pools, evicting for them, or None with nothing evicted."""
        need, pools = pages * self.page, self.allocator
        if pools.full_available_size() + self.cache.full_evictable_size() < need:
            return None
        if pools.swa_available_size() + self.cache.swa_evictable_size() < need:
            return None
        pools.evict_to_free_tokens(self.cache, need)
        slots = pools.full_attn_allocator.alloc(need)
        windows = pools.swa_attn_allocator.alloc(need)
        assert len(slots) == len(windows) == need
        pools.set_full_to_swa_mapping(slots, windows)
        return slots

    def admit(self, row):
        """Hit pages, or None where there is no room."""
        wanted = self.requests[row]
        tokens = array("q", wanted["tokens"])
        match = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens, limit=max(len(tokens) - 1, 0))))
        hit = match.device_prefix_len
        lock = self.cache.lock(match.last_device_node)
        slots = self.room(self.pages(len(tokens)) - hit // self.page)
        if slots is None:
            self.cache.unlock(lock)
            return None
        self.rows.req_to_token[row] = torch.cat((self.cache.path_device_indices(match.last_device_node), slots))
        ended = []
        self.live[row] = SimpleNamespace(
            kv=ReqKvInfo(req_pool_idx=row, cache_protected_len=hit, kv_allocated_len=len(tokens)),
            lock=lock, last_node=match.last_device_node, origin_input_ids=tokens, extra_key=None, cache_salt=None,
            full_untruncated_fill_ids=tokens, get_fill_ids=lambda: tokens, priority=wanted["priority"],
            held=len(tokens), rid=str(row), session=None, session_id=None, kv_rotation_base=None,
            swa_branching_seqlen=match.swa_branching_seqlen, ended=ended, finished=lambda: bool(ended),
        )  # fmt: skip
        self.cache.checkpoint(self.live[row], up_to=len(tokens))
        return hit // self.page

    def finish(self, row):
        self.live[row].ended.append(True)
        super().finish(row)

    def close(self):
        pools, cache = self.allocator, self.cache
        assert cache.full_protected_size() == cache.swa_protected_size() == 0
        assert cache.full_evictable_size() + pools.full_available_size() == pools.size_full
        assert cache.swa_evictable_size() + pools.swa_available_size() == pools.size_swa


def serve(case):
    case["core"], case["tree"] = case["tree"], "unified"
    return plain.serve(case, Windows)


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
