"""Requests of hybrid models hit in our cache groups what they hit in vLLM's own, request by request.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them; KVTRACE_CASES is the number of
random cases, KVTRACE_ROWS the number of requests of the conversation trace.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_hybrid` writes the vectors anew.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from kvtrace import read
from kvtrace.cache import simulate
from kvtrace.cache.layout import CacheGroup, CacheLayout
from tests.cache.hybrid_cases import client_case, drafted_case, engine_run, random_case
from tests.cache.test_engine_vllm_hybrid import VECTORS
from tests.clients.in_vllm import answers, needs_vllm

LAYOUTS = {  # model -> its groups with blocks of 512 tokens, and blocks of the pool in the memory of one of all layers
    "gpt-oss-120b": ((CacheGroup("full", 18, 512), CacheGroup("window", 18, 512, 128)), 2),
    "gemma-3-27b": ((CacheGroup("full", 10, 512), *[CacheGroup("window", 10, 512, 1024)] * 6), 6.2),
    "qwen3-next-80b": ((CacheGroup("full", 12, 512), *[CacheGroup("state", 12, 512)] * 3), 4),
}


def client_served(cases, folder):
    """(hit tokens, early frees) of each case, as vLLM's own cache counts them."""
    return [(one["hits"], one["early_frees"]) for one in answers(cases, folder, "vllm_hybrid.py")]


@needs_vllm
def test_random_cases_hit_as_in_vllm(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    cases = [random_case(rng) for _ in range(int(os.environ.get("KVTRACE_CASES", 200)))]
    for case, real in zip(cases, client_served([client_case(case) for case in cases], tmp_path), strict=True):
        assert engine_run(case) == real, f"seed {seed}: {case}"


@needs_vllm
def test_with_a_drafter_random_cases_hit_as_in_vllm(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    cases = [drafted_case(rng, ["lookahead"]) for _ in range(int(os.environ.get("KVTRACE_CASES", 200)))]
    for case, real in zip(cases, client_served([client_case(case) for case in cases], tmp_path), strict=True):
        assert engine_run(case) == real, f"seed {seed}: {case}"


@needs_vllm
@pytest.mark.parametrize("model", LAYOUTS)
def test_the_conversation_trace_hits_as_in_vllm(shared, model, tmp_path):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")[: int(os.environ.get("KVTRACE_ROWS", 1500))]
    groups, share = LAYOUTS[model]
    tokens = [np.repeat(trace.prompt(row), 512)[: trace.input_length[row]].tolist() for row in range(len(trace))]
    requests = [{"tokens": prompt, "more": 0} for prompt in tokens]
    plans = [
        (int(blocks * share), CacheLayout(groups, retention_interval=interval, internal_checkpoint_alignment=internal))
        for blocks in (1_000, 5_000, 10_000)
        for interval in (0, None)
        for internal in ((0, 1, 512) if model.startswith("qwen") else (0,))
    ]
    cases = [
        {
            "block_size": 512, "hash_block_size": 512, "groups": [vars(group) for group in groups], "junctions": True,
            "retention_interval": layout.retention_interval, "step_tokens": 8192, "capacity": capacity, "grow": False,
            "internal_checkpoint": layout.internal_checkpoint_alignment, "schedule": {"kind": "serial"},
            "requests": requests,
        }
        for capacity, layout in plans
    ]  # fmt: skip
    for (capacity, layout), (real, _) in zip(plans, client_served(cases, tmp_path), strict=True):
        ours = simulate(trace, capacity, engine="vllm", mode="token", layout=layout).hit_blocks * 512
        assert ours.tolist() == real, f"{capacity} {layout.retention_interval}"


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    real = client_served([client_case(case) for case in VECTORS["cases"]], tmp_path)
    assert real == [(case["hits"], case["early_frees"]) for case in VECTORS["cases"]]


def make_vectors(folder):
    """Random cases, with what vLLM says of each."""
    rng = np.random.default_rng(20)
    cases = [random_case(rng) for _ in range(60)]
    said = answers([client_case(case) for case in cases], folder, "vllm_hybrid.py")
    cases = [
        case | {"hits": answer["hits"], "early_frees": answer["early_frees"]}
        for case, answer in zip(cases, said, strict=True)
    ]
    return {"engine": "vllm", "version": said[0]["version"], "cache": "HybridKVCacheCoordinator", "cases": cases}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = make_vectors(Path(name))
    text = json.dumps(found).replace('{"layout"', '\n{"layout"')
    (Path(__file__).parent.parent / "vectors/engine_vllm_hybrid.json").write_text(text + "\n")
