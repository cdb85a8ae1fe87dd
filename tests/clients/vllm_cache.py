"""vLLM: its own KVCacheManager serves requests; run in vLLM's environment as CASES (a file with a JSON object a line).

A case says block_size, capacity (usable blocks), grow, a schedule (kind, window, arrival, end) and requests: tokens (of
the prompt), more (tokens generated and cached) and, if any, salt, adapter and images ([hash, first token, tokens]).
With a drafter, `drafting` has its rule (lookahead or drop) and the tokens that it predicts.
Prints, a case a line, vLLM's version, each request's hit blocks, and the number of early frees. Requests, hashes,
blocks and queue are vLLM's, unmodified; ours is the schedule.
"""

import json
import sys

import torch
import vllm_absent  # noqa: F401 - before vllm
from vllm import __version__
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


class Server:
    """One KVCacheManager over so many usable blocks, and the verbs admit, grow and finish."""

    def __init__(self, case):
        size = case["block_size"]
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float16)
        config = KVCacheConfig(
            num_blocks=case["capacity"] + 1,  # block 0 is the null block
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.drafts, options, self.lookahead = drafter_of(case)
        self.manager = KVCacheManager(
            config, max_model_len=1 << 40, scheduler_block_size=size, hash_block_size=size, **options
        )
        self.hasher = get_request_block_hasher(size, sha256, options["num_hash_lookahead_tokens"])
        self.size, self.rows, self.live = size, case["requests"], {}

    def admit(self, row):
        """Hit blocks, or None where there is no room."""
        tokens = self.rows[row]["tokens"]
        salt, adapter = (self.rows[row].get(name) for name in ("salt", "adapter"))
        request = Request(
            str(row), tokens, SamplingParams(max_tokens=1), None, block_hasher=self.hasher, cache_salt=salt,
            lora_request=adapter and LoRARequest(adapter, 1 + len(adapter), f"/{adapter}"),
            mm_features=[image_of(*image) for image in self.rows[row].get("images", ())],
        )  # fmt: skip
        found, hit, _ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - hit, hit, found, self.lookahead) is None:
            return None
        request.num_computed_tokens = len(tokens)
        self.live[row] = request
        self.learn(row, request)
        return hit // self.size

    def grow(self, row):
        """True, or False where there is no room."""
        request, more = self.live[row], self.rows[row]["more"]
        while request.num_output_tokens < more:
            request.append_output_token_ids(-1 - row * 100_000 - request.num_output_tokens)  # of nobody else
        if more and self.manager.allocate_slots(request, more, num_lookahead_tokens=self.lookahead) is None:
            return False
        request.num_computed_tokens += more
        self.learn(row, request)
        return True

    def learn(self, row, request):
        """With a drafter the next token is known when Scheduler caches what a step has filled."""
        if self.drafts and request.num_tokens == request.num_computed_tokens:
            request.append_output_token_ids(-1 - row * 100_000 - request.num_output_tokens)
            self.manager.cache_blocks(request, request.num_computed_tokens)

    def finish(self, row):
        self.manager.free(self.live.pop(row))


def drafter_of(case):
    """Whether there is a drafter, how Scheduler tells a KVCacheManager of it, and the lookahead slots of a request."""
    drafting = case.get("drafting") or {"rule": None, "tokens": 0}
    options = {
        "use_eagle": drafting["rule"] == "drop", "num_hash_lookahead_tokens": int(drafting["rule"] == "lookahead"),
        "num_prefill_lookahead": int(drafting["rule"] is not None),
    }  # fmt: skip
    return drafting["rule"] is not None, options, drafting["tokens"]


def image_of(identifier, offset, length):
    """An image of a prompt, as vLLM's processor leaves it to the cache."""
    return MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset, length))


def serve(case, server=Server):
    """Each request's hit blocks and how many requests were freed early."""
    server, schedule, hits, early = server(case), case["schedule"], [], 0
    arrival, end = schedule.get("arrival"), schedule.get("end")

    def free_oldest(but):
        server.finish(min(row for row in server.live if row != but))

    for row in range(len(case["requests"])):
        if schedule["kind"] == "concurrency":
            while len(server.live) >= schedule["concurrency"]:
                free_oldest(row)
        elif schedule["kind"] == "open-loop":
            for ended in sorted((row for row in server.live), key=lambda row: (end[row], row)):
                if end[ended] <= arrival[row]:
                    server.finish(ended)
        hit = server.admit(row)
        while hit is None:
            free_oldest(row)
            early += 1
            hit = server.admit(row)
        hits.append(hit)
        while case["grow"] and not server.grow(row):
            free_oldest(row)
            early += 1
        if schedule["kind"] == "serial":
            server.finish(row)
    for row in sorted(server.live):
        server.finish(row)
    assert server.manager.block_pool.get_num_free_blocks() == case["capacity"]
    return {"version": __version__, "hits": hits, "early_frees": early}


if __name__ == "__main__":
    init_none_hash(sha256)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
