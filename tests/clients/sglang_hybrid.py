"""SGLang: its own tree and pools for hybrid models serve requests; run in SGLang's environment as CASES (a JSON file).

A case is as in sglang_cache.py (without grow; `tree` names the core of the tree: rust, the default of 0.5.23, or
python). `prefill` is the number of tokens that a step computes of a prompt, 0 = all. The case says which second kind of
layers the model has: `window` (tokens) with `second` (pages of the pool of sliding windows), or `every` (tokens between
two states that a prefill can record) with `second` (states). A request without room waits where it is. Prints, a
case a line, each request's hit pages and the number of early frees. SGLang's, unmodified: UnifiedRadixCache with its
components, the allocators of both pools, the record of a request, the frees of slots that leave a window, the choice of
the state that a prefill records, and what a request does with its states (HybridReqToTokenPool, strategy extra_buffer).
Ours are the schedule, and the stand-ins for a request and for the memory behind the pools.
"""

import json
import sys
from array import array
from types import SimpleNamespace

import sglang_cache as plain  # the file beside this one: the cache of full attention
import sglang_scheduler as imported
import torch
from sglang.srt import runtime_context
from sglang.srt.managers.schedule_batch import ReqKvInfo, ScheduleBatch
from sglang.srt.mem_cache.allocation import alloc_req_slots
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.common import checkpoint_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey

FULL, SWA, MAMBA = (getattr(imported.ComponentType, name) for name in ("FULL", "SWA", "MAMBA"))

STATES_OF_A_REQUEST = 5  # by which SGLang divides the states to get max_running_requests (kv_cache_configurator.py)


class Memory(BaseSWAKVPool):
    """Stands for the keys and values: it knows which slot of the windows' pool belongs to a slot of the full pool."""

    def __init__(self):
        pass

    def register_mapping(self, full_to_swa_index_mapping):
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices):
        return self.full_to_swa_index_mapping[kv_indices]


Memory.__abstractmethods__ = frozenset()  # its other methods move bytes


class Hybrid(plain.Server):
    """What both kinds of models share; `second` names their component."""

    def components(self, case):
        self.started, self.prefill = {}, case.get("prefill", 0)
        return {"tree_components": (FULL, self.second), "tree_core_backend": case["core"], **self.settings(case)}

    def request(self, row):
        """A request before it has anything."""
        tokens, ended = array("q", self.requests[row]["tokens"]), []
        request = SimpleNamespace(
            kv=ReqKvInfo(kv_allocated_len=len(tokens)), origin_input_ids=tokens, extra_key=None, cache_salt=None,
            full_untruncated_fill_ids=tokens, priority=self.requests[row]["priority"], held=len(tokens),
            skip_radix_cache_insert=False, rid=str(row), session=None, session_id=None,
            kv_rotation_base=None, swa_branching_seqlen=None, ended=ended, finished=lambda: bool(ended),
        )  # fmt: skip
        request.get_fill_ids = lambda: tokens[: request.extend_end]
        return request

    def match(self, request):
        """Match, and note in the request what SGLang's match_kv_cache does."""
        tokens = request.origin_input_ids
        key = RadixKey(tokens, limit=max(len(tokens) - 1, 0))
        match = self.cache.match_prefix(MatchPrefixParams(key=key, cow_mamba=self.second is MAMBA, req=request))
        request.hit = request.prefix_len = request.kv.cache_protected_len = match.device_prefix_len
        request.swa_branching_seqlen = match.swa_branching_seqlen
        request.mamba_branching_seqlen = match.mamba_branching_seqlen
        return match.last_device_node

    def admit(self, row):
        """Hit pages, or None where there is no room; the next call goes on with the step that had none."""
        request = self.started.pop(row, None)
        if request is None:
            if not self.seat():
                return None
            request = self.request(row)
            request.last_node = self.match(request)
            request.lock = self.cache.lock(request.last_node)
        first = not request.kv.holds_kv
        while first or request.prefix_len < request.held:
            request.extend_end = min(request.prefix_len + (self.prefill or request.held), request.held)
            request.extend_len = request.extend_end - request.prefix_len
            slots = self.room(request, self.pages(request.extend_end) - request.prefix_len // self.page)
            if slots is None and first:
                self.cache.unlock(request.lock)
                return None
            if slots is None:
                self.started[row] = request
                return None
            self.write(request, row, slots, first)
            checkpoint_kv_cache(request, self.cache)
            first = False
        self.live[row] = request
        return request.hit // self.page

    def seat(self):
        return True

    def write(self, request, row, slots, first):
        if not request.kv.holds_kv:
            request.kv.req_pool_idx = row
        table, row = self.rows.req_to_token, request.kv.req_pool_idx
        before = self.cache.path_device_indices(request.last_node) if first else table[row]
        table[row] = torch.cat((before, slots))

    def finish(self, row):
        self.live[row].ended.append(True)
        super().finish(row)


class Windows(Hybrid):
    """A model with layers of full attention and layers with a sliding window."""

    second = SWA

    def pools(self, case):
        sizes = case["capacity"] * self.page, case["second"] * self.page
        self.allocator = SWATokenToKVPoolAllocator(*sizes, self.page, torch.int64, "cpu", Memory(), False)
        self.rows = plain.Rows()

    def settings(self, case):
        return {"sliding_window_size": case["window"]}

    def room(self, request, pages):
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

    def close(self):
        pools, cache = self.allocator, self.cache
        assert cache.full_protected_size() == cache.swa_protected_size() == 0
        assert cache.full_evictable_size() + pools.full_available_size() == pools.size_full
        assert cache.swa_evictable_size() + pools.swa_available_size() == pools.size_swa


class StateRows(HybridReqToTokenPool):
    """SGLang's rows and states of requests, without the memory behind them."""

    def __init__(self, seats, states):
        self.req_to_token, self.device = plain.Table(), "cpu"
        self._alloc_size, self.free_slots = seats + 1, list(range(1, seats + 1))
        self.req_generation = torch.zeros(self._alloc_size, dtype=torch.int64)
        self.mamba_allocator = MambaSlotAllocator(states, "cpu")
        self.mamba_pool = SimpleNamespace(size=states, replayssm_write_pos=None, replayssm_spec_write_pos=None)
        self.mamba_ckpt_pool = self._aux_cache = None
        self.enable_mamba_extra_buffer, self.enable_mamba_extra_buffer_lazy = True, False
        self.mamba_ping_pong_track_buffer_size = self.mamba_initial_tracking_slots = 2
        self.req_index_to_mamba_index_mapping = torch.zeros(self._alloc_size, dtype=torch.int32)
        self.req_index_to_mamba_ping_pong_track_buffer_mapping = torch.zeros((self._alloc_size, 2), dtype=torch.int64)

    write = plain.Rows.write


class States(Hybrid):
    """A model with layers of full attention and layers with a state, which a prefill records in chunks."""

    second = MAMBA

    def pools(self, case):
        plain.Server.pools(self, case)
        self.seats = case["second"] // STATES_OF_A_REQUEST
        self.rows = StateRows(self.seats, case["second"])
        runtime_context.get_server_args()._mamba_cache_chunk_size = max(case["every"], self.page)

    def settings(self, case):
        return {"enable_mamba_extra_buffer": True}

    def seat(self):
        return len(self.live) < self.seats

    def room(self, request, pages):
        need, pools = pages * self.page, self.allocator
        if pools.available_size() + self.cache.full_evictable_size() < need:
            if request.kv.holds_mamba and not request.kv.holds_kv:
                self.rows.mamba_allocator.free(request.kv.mamba_pool_idx.unsqueeze(-1))
            return None
        assert alloc_req_slots(self.rows, [request], self.cache)
        pools.evict_to_free_tokens(self.cache, need)
        slots = pools.alloc(need)
        assert len(slots) == need
        return slots

    def write(self, request, row, slots, first):
        super().write(request, row, slots, first)
        batch = SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
            tree_cache=self.cache, req_to_token_pool=self.rows,
        )  # fmt: skip
        ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, request)

    def finish(self, row):
        request = self.live.pop(row)
        request.ended.append(True)
        self.cache.checkpoint(request, up_to=request.held)
        self.cache.free_kv_row(request.kv, [(request.kv.cache_protected_len, request.held)])
        self.cache.unlock(request.lock)
        del self.rows.req_to_token[request.kv.req_pool_idx]
        self.rows.free(request)

    def close(self):
        cache = self.cache
        assert cache.full_protected_size() == cache.mamba_protected_size() == 0
        assert cache.full_evictable_size() + self.allocator.available_size() == self.allocator.size
        states = self.rows.mamba_allocator
        assert cache.mamba_evictable_size() + states.available_size() == states.size


def serve(case):
    case["core"], case["tree"] = case["tree"], "unified"
    return plain.serve(case, Windows if "window" in case else States)


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
