"""Drafters, parallelism and dtypes: our caches hit what the engines' own hit, on the conversation trace and at layouts.

The tests of each engine beside this one try random cases with drafters. `KVTRACE_CLIENTS=... python -m
tests.clients.test_drafters` writes tests/vectors/drafters.json anew.
"""

import itertools
import json
import os
import random
from dataclasses import asdict, replace
from math import gcd
from pathlib import Path

import numpy as np
import pytest

from kvtrace import read
from kvtrace.cache.engines.cache_groups import vllm_layout
from kvtrace.cache.layout import CacheLayout, Drafting
from kvtrace.cache.simulation import Setting, run
from kvtrace.serving.models.layers import layer_kinds
from tests.cache import test_engine_sglang as sglang
from tests.cache import test_engine_vllm as vllm
from tests.cache.hybrid_cases import client_case, conversations, drafted_case, engine_run
from tests.clients import test_sglang_cache, test_sglang_hybrid, test_sglang_scheduler, test_vllm_cache
from tests.clients.in_vllm import answers, needs_vllm
from tests.clients.test_sglang_cache import needs_sglang
from tests.clients.test_vllm_hybrid import LAYOUTS, client_served
from tests.conftest import ROOT
from tests.serving.scheduler_cases import hybrid_case, sglang_case, vllm_case, with_drafter

ROWS = int(os.environ.get("KVTRACE_ROWS", 1500))  # of the conversation trace


@needs_vllm
@pytest.mark.parametrize("rule", ["lookahead", "drop"])
def test_the_conversation_trace_hits_as_in_vllm(shared, rule, tmp_path):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")[:ROWS]
    drafting, cases = Drafting(rule, 3), []
    for blocks, mode in itertools.product((1_000, 5_000, 10_000), ("token", "grow")):
        cases.append({"mode": mode, "schedule": "serial", "capacity": blocks, "drafting": drafting})
    real = test_vllm_cache.served([test_vllm_cache.wanted(trace, **case) for case in cases], tmp_path)
    for case, said in zip(cases, real, strict=True):
        ours = run(Setting(case["capacity"], engine="vllm", mode=case["mode"], drafting=drafting), trace)
        assert ours.hit_blocks.tolist() == said["hits"] and sum(said["hits"]) > 0, case


@needs_vllm
@pytest.mark.parametrize("model", LAYOUTS)
def test_the_conversation_trace_hits_as_in_vllm_with_cache_groups(shared, model, tmp_path):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")[:ROWS]
    groups, share = LAYOUTS[model]
    tokens = [np.repeat(trace.prompt(row), 512)[: trace.input_length[row]].tolist() for row in range(len(trace))]
    drafting = Drafting("lookahead", 2)
    cases = [
        {
            "block_size": 512, "hash_block_size": 512, "groups": [asdict(group) for group in groups], "junctions": True,
            "retention_interval": interval, "step_tokens": 8192, "capacity": int(blocks * share), "grow": False,
            "internal_checkpoint": 0, "schedule": {"kind": "serial"}, "drafting": drafting.to_dict(),
            "requests": [{"tokens": prompt, "more": 0} for prompt in tokens],
        }
        for blocks, interval in itertools.product((1_000, 5_000), (0, None))
    ]  # fmt: skip
    for case, (real, _) in zip(cases, client_served(cases, tmp_path), strict=True):
        layout = CacheLayout(groups, retention_interval=case["retention_interval"])
        setting = Setting(case["capacity"], engine="vllm", mode="token", layout=layout, drafting=drafting)
        assert (run(setting, trace).hit_blocks * 512).tolist() == real, case["capacity"]


@needs_sglang
def test_the_conversation_trace_hits_as_in_sglang(shared, tmp_path):
    whole = read(shared / "data/mooncake/conversation_trace.jsonl")
    trace = test_sglang_cache.block_per_token(whole)
    plain = {"mode": "block", "tree": "unified", "drafting": Drafting("bigram")}
    cases = [
        plain | {"schedule": schedule, "policy": policy, "capacity": capacity}
        for capacity, policy, schedule in (
            (1_000, "lru", "serial"),
            (10_000, "lru", "serial"),
            (3_000, "slru", "concurrency:4"),
        )
    ]
    real = test_sglang_cache.served([test_sglang_cache.wanted(trace, **case) for case in cases], tmp_path)
    for case, said in zip(cases, real, strict=True):
        engine = sglang.serve(trace, **case)
        assert (engine.hits.tolist(), engine.early_frees) == (said["hits"], said["early_frees"]), case


# ---- the layouts of a rank


def rank_layers(model, heads, gpus, fp8):
    """The layers that one of `gpus` GPUs has: whole heads of attention, at least one, and a share of each state."""
    share = max(1, heads // gpus) / heads / (2 if fp8 else 1)
    return [
        replace(kind, token_bytes=int(kind.token_bytes * share), state_bytes=kind.state_bytes // gpus)
        for kind in layer_kinds(model)
    ]


RANKS = [  # model, its KV heads, GPUs, FP8 keys and values
    (model, heads, gpus, fp8)
    for model, heads in (("qwen3.5-397b-a17b", 2), ("gpt-oss-120b", 8), ("gemma-3-27b", 16), ("qwen3-next-80b-a3b", 2))
    for gpus, fp8 in ((1, False), (8, False), (8, True), (4, True))
]


def rank_case(rng, model, heads, gpus, fp8):
    """Conversations whose words are a part of a block of the model's layout on one GPU, with a drafter or without."""
    layout = vllm_layout(rank_layers(model, heads, gpus, fp8))
    unit = gcd(*(group.block_size for group in layout.groups))
    base = unit // next(part for part in (3, 2, 5, 7, 11, 1) if unit % part == 0)
    case = drafted_case(rng, ["lookahead"])
    prompts = conversations(rng, 30, base)
    for prompt in prompts:
        rest = len(prompt) % base
        prompt[len(prompt) - rest :] = [100 + base * prompt[-1] + rest] * rest
    more = rng.integers(0, 2 * base, size=len(prompts)).tolist()
    longest = max(map(len, prompts)) + max(more) + 8
    need = sum(-(-longest // group.block_size) + 8 for group in layout.groups)
    return case | {
        "layout": asdict(layout), "base": base, "prompts": prompts, "more": more,
        "schedule": {"kind": "serial", "arrival": list(map(float, range(30)))},
        "capacity": need + int(rng.integers(0, 60)), "drafting": case["drafting"] if rng.integers(2) else None,
    }  # fmt: skip


def test_the_block_of_a_rank_is_that_of_public_reports():
    """Qwen3.5-397B on eight GPUs: vLLM logs blocks of 528 tokens."""
    assert vllm_layout(rank_layers("qwen3.5-397b-a17b", 2, 8, False)).groups[0].block_size == 528


@needs_vllm
def test_the_layouts_of_ranks_hit_as_in_vllm(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    cases = [rank_case(rng, *rank) for rank in RANKS for _ in range(4)]
    found = client_served([client_case(case) for case in cases], tmp_path)
    for case, real in zip(cases, found, strict=True):
        assert engine_run(case) == real, f"seed {seed}: {case['layout']}, {case['drafting']}"
    assert sum(sum(hits) > 0 for hits, _ in found) > len(cases) // 4


# ---- vectors


def with_answers(cases, real, names=("hits", "early_frees")):
    return [as_json(case) | {name: said[name] for name in names} for case, said in zip(cases, real, strict=True)]


def as_json(case):
    return {name: value.to_dict() if isinstance(value, Drafting) else value for name, value in case.items()}


def make_vectors(folder):
    """Cases of each engine with drafters, and what it says of each."""
    rng = np.random.default_rng(37)
    found = {"vllm": [], "sglang": [], "sglang_hybrid": []}
    for size in (1, 4):
        vector = test_vllm_cache.made(f"conversations, blocks of {size}", rng, rows=30, block_size=size)
        trace = vllm.vector_trace(vector)
        cases = list(test_vllm_cache.drafted(trace, (1, 0, 5, 12)))[::4]
        vector["cases"] = with_answers(
            cases, test_vllm_cache.served([test_vllm_cache.wanted(trace, **case) for case in cases], folder)
        )
        found["vllm"].append(vector)
    cases = [drafted_case(rng, ["lookahead"]) for _ in range(30)]
    found["vllm_hybrid"] = with_answers(cases, answers([client_case(case) for case in cases], folder, "vllm_hybrid.py"))
    for size in (1, 4):
        vector = sglang.made(f"conversations, blocks of {size}", rng, rows=30, block_size=size)
        trace = sglang.vector_trace(vector)
        kinds = list(
            itertools.product(
                test_sglang_cache.MODES, test_sglang_cache.SCHEDULES, sglang.POLICIES, ("unified", "radix")
            )
        )[::9]
        cases = list(test_sglang_cache.cases_of(trace, kinds, (1, 0, 5, 12), drafting=Drafting("bigram")))
        real = test_sglang_cache.served([test_sglang_cache.wanted(trace, **case) for case in cases], folder)
        found["sglang"].append(dict(vector) | {"cases": with_answers(cases, real)})
        cases = [test_sglang_hybrid.drawn_case(rng, trace) | {"bigram": True} for _ in range(12)]
        real = test_sglang_cache.served(
            [test_sglang_hybrid.wanted(trace, **case) for case in cases], folder, test_sglang_hybrid.SCRIPT
        )
        found["sglang_hybrid"].append(dict(vector) | {"cases": with_answers(cases, real)})
    drawn = [random.Random(seed) for seed in range(400)]
    cases = [with_drafter(rng, vllm_case(rng)) for rng in drawn[:150]] + [
        with_drafter(rng, hybrid_case(rng), ["lookahead"]) for rng in drawn[150:300]
    ]
    cases = [case for case in cases if len(case["requests"]) <= 8]
    real = answers(cases, folder, "vllm_scheduler.py")
    version = real[0]["version"]
    found["vllm_scheduler"] = [
        {"case": case, "served": {name: said[name] for name in ("steps", "requests")}}
        for case, said in zip(cases, real, strict=True) if len(said["steps"]) <= 60
    ][:20]  # fmt: skip
    cases = [sglang_case(rng, 8, 12) | {"bigram": True} for rng in drawn[300:]]
    cases = [case for case in cases if test_sglang_scheduler.twin(case) is not None]
    real = test_sglang_scheduler.served(cases, folder)
    found["sglang_scheduler"] = [
        {"case": case, "served": {name: said[name] for name in ("steps", "requests")}}
        for case, said in zip(cases, real, strict=True)
        if len(said["steps"]) <= 60 and all(row[3] is not None for row in said["requests"])
    ][:10]  # fmt: skip
    return {"versions": {"vllm": version, "sglang": real[0]["version"]}} | found


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        vectors = make_vectors(Path(name))
    text = json.dumps(vectors, separators=(",", ":"))
    (ROOT / "tests/vectors/drafters.json").write_text(text + "\n")
