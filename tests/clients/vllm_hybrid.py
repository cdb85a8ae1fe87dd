"""vLLM: its own KVCacheManager serves requests of a hybrid model; run in vLLM's environment as CASES (JSON lines).

A case has the fields of vllm_cache.py, and: groups (each with kind, block_size and window), hash_block_size,
retention_interval (null = dense), step_tokens, junctions (whether the scheduler is told where shared prefixes end), and
internal_checkpoint (tokens between positions within a chunk at which states can be saved, 0 = none). With a drafter,
`drafting` is as in vllm_cache.py.
It prints, a case a line, vLLM's version, each request's hit tokens, and the number of early frees.

Managers, coordinator, hashes, blocks and queue are vLLM's, unmodified, and so is the rule of its Scheduler that ends
chunks of a prompt where a state must be saved. Ours is the loop: the chunks of a prompt, then one token at a time.
"""

import json
import math
import sys
from types import SimpleNamespace

import torch
import vllm_cache as plain
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request


def spec_of(group, checkpoint, lookahead=0):
    """The KVCacheSpec of a group; sizes in bytes do not matter here. `lookahead` are the tokens of a drafter."""
    size, kind = group["block_size"], group["kind"]
    if kind == "state":
        internal = (
            {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": checkpoint} if checkpoint else {}
        )
        return MambaSpec(
            block_size=size, shapes=((1,),), dtypes=(torch.float16,), mamba_cache_mode="align",
            num_speculative_blocks=lookahead, **internal,
        )  # fmt: skip
    attention = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    if kind == "window":
        return SlidingWindowSpec(**attention, sliding_window=group["window"])
    if kind == "chunk":
        return ChunkedLocalAttentionSpec(**attention, attention_chunk_size=group["window"])
    return FullAttentionSpec(**attention)


class HybridServer(plain.Server):
    """One KVCacheManager with several cache groups, and the verbs admit, grow and finish."""

    def __init__(self, case):
        groups, checkpoint = case["groups"], case["internal_checkpoint"]
        size, unit = math.lcm(*(group["block_size"] for group in groups)), case["hash_block_size"]
        self.drafts, options, self.lookahead = plain.drafter_of(case)
        config = KVCacheConfig(
            num_blocks=case["capacity"] + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{i}"], spec_of(group, checkpoint, self.lookahead))
                for i, group in enumerate(groups)
            ],
            prefix_cache_retention_interval=case["retention_interval"],
        )
        self.manager = KVCacheManager(
            config, max_model_len=1 << 40, scheduler_block_size=size, hash_block_size=unit, **options
        )
        self.hasher = get_request_block_hasher(unit, sha256, options["num_hash_lookahead_tokens"])
        self.size, self.rows, self.live, self.hits = 1, case["requests"], {}, {}
        self.step_tokens, self.junctions = case["step_tokens"], case["junctions"]
        self.has_state = any(group["kind"] == "state" for group in groups)
        self.scheduler = SimpleNamespace(  # what the rule reads of a Scheduler
            cache_config=SimpleNamespace(block_size=size), block_size=size, hash_block_size=unit,
            use_eagle_block_drop=options["use_eagle"],
            num_hash_lookahead_tokens=options["num_hash_lookahead_tokens"], mamba_partial_cache_hit=False,
            mamba_has_prefill_checkpoint_blocks=bool(checkpoint),
            mamba_prefill_checkpoint_alignment=checkpoint or None,
            mamba_shared_prefix_checkpoint=False, max_num_scheduled_tokens=self.step_tokens,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )  # fmt: skip

    def admit(self, row):
        """Hit tokens, or None where there is no room; then the chunks so far are kept."""
        request, found, hit = self.live.get(row), None, 0
        self.manager.new_step_starts()
        if request is None:
            tokens = self.rows[row]["tokens"]
            request = Request(str(row), tokens, SamplingParams(max_tokens=1), None, block_hasher=self.hasher)
            found, hit, junction = self.manager.get_computed_blocks(request)
            request.shared_prefix_boundary = junction if self.junctions else 0
            self.hits[row] = hit
        while (left := request.num_tokens - request.num_computed_tokens - hit) > 0:
            chunk = min(left, self.step_tokens)
            if self.has_state:
                chunk = Scheduler._mamba_block_aligned_split(self.scheduler, request, chunk, hit)
            if self.manager.allocate_slots(request, chunk, hit, found, self.lookahead) is None:
                return None
            request.num_computed_tokens += hit + chunk
            self.live[row], found, hit = request, None, 0
        self.learn(row, request)
        return self.hits[row]

    def grow(self, row):
        """True, or False where there is no room; then the tokens so far are kept."""
        request, more = self.live[row], self.rows[row]["more"]
        while request.num_computed_tokens < len(self.rows[row]["tokens"]) + more:
            if request.num_tokens == request.num_computed_tokens:
                request.append_output_token_ids(-1 - row * 100_000 - request.num_output_tokens)  # of nobody else
            if self.manager.allocate_slots(request, 1, num_lookahead_tokens=self.lookahead) is None:
                return False
            request.num_computed_tokens += 1
            self.learn(row, request)
        return True


if __name__ == "__main__":
    init_none_hash(sha256)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(plain.serve(json.loads(line), HybridServer)), flush=True)
