"""vLLM: its own planner sizes caches; run in vLLM's environment as CASES (a file with a JSON object a line).

A case is one of vllm_layout.py, with the bytes that are left for KV, max_model_len, the tokens in flight, the ranks of
decode context parallelism, and `checkpoints`: the kernel of states saves some on its way. Prints, a case a line, vLLM's
version, its blocks, the tokens that it logs, and the greatest concurrency: get_kv_cache_config_from_groups and
get_kv_cache_capacity, unmodified.
"""

import json
import sys
from dataclasses import replace

import vllm_layout as layout
from vllm import __version__
from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
from vllm.v1.kv_cache_interface import MambaSpec


def sized(case):
    config = layout.server(case)
    config.model_config.max_model_len = case["max_model_len"]
    config.max_in_flight_tokens = case["in_flight"]
    config.parallel_config.decode_context_parallel_size = case["context_ranks"]
    layout.align(config, case)
    specs = {f"layers.{number}": layout.spec(layer, config.cache_config) for number, layer in enumerate(case["layers"])}
    if case["checkpoints"]:  # as the layers' kernels add a block for a state that they save
        specs = {
            name: replace(spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)
            if isinstance(spec, MambaSpec)
            else spec
            for name, spec in specs.items()
        }
    groups = get_kv_cache_groups(config, specs)
    cache = get_kv_cache_config_from_groups(config, groups, case["available"])
    tokens, concurrency = get_kv_cache_capacity(config, cache)
    return {"blocks": cache.num_blocks, "logged": tokens, "concurrency": concurrency}


def answer(case):
    try:
        return sized(case)
    except (ValueError, AssertionError, NotImplementedError) as error:
        return {"refused": type(error).__name__, "reason": str(error)[:200]}


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        for line in file:
            case = json.loads(line)
            case["layers"] = [case["kinds"][letter] for letter in case["layers"]]
            print(json.dumps({"version": __version__} | answer(case)), flush=True)
