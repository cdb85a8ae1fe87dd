"""Room for KV: vectors from vLLM's own planner, public start-up lines, and small cases worked out by hand."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import median

import pytest

from kvtrace.cache.engines.cache_groups import sglang_layout, vllm_layout
from kvtrace.cache.layout import LayerKind
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import gpu, sglang_memory, vllm_memory
from kvtrace.serving.hardware.room import room_in_layout
from tests.cache.test_vllm_layout import layers_of

PATH = Path(__file__).parent.parent / "vectors/vllm_room.jsonl"
GIB = 1 << 30
SGLANG_PATH = PATH.with_name("sglang_room.jsonl")
VECTORS, SGLANG_VECTORS = (
    [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for path in (PATH, SGLANG_PATH)
)


def ours(case):
    """Our room in the words of the vectors; vLLM has two steps in flight."""
    layout = vllm_layout(layers_of(case), state_kernel=case["state_kernel"], block_size=case["block_size"])
    deployment = Deployment(
        "llama-3.1-8b", max_model_len=case["max_model_len"], max_num_batched_tokens=case["in_flight"] // 2,
        decode_context_parallel_size=case["context_ranks"],
    )  # fmt: skip
    room = room_in_layout(deployment, layout, case["available"])
    return {"blocks": room.blocks, "logged": room.logged_tokens, "concurrency": room.concurrency}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_cache_is_sized_as_in_vllm(vector):
    room = {key: vector["room"][key] for key in ("blocks", "logged", "concurrency")}
    assert ours(vector["case"]) == room


def ours_in_sglang(case):
    """Our pools, or our share, in the words of the vectors."""
    if "memory_mib" in case:
        device = replace(gpu("h100"), memory=case["memory_mib"] << 20)
        deployment = Deployment(
            "deepseek-v3" if case["latent"] else "llama-3.1-8b", "sglang", tensor_parallel_size=case["tp"]
        )
        share, _ = sglang_memory.static_share(deployment, device)
        return {"share": share, "graphs_mib": sglang_memory.graphs_mib(deployment, device)}
    heads, windows = max(1, case["kv_heads"] // case["tp"]), case.get("window_layers", 0)
    token_bytes = 2 * (case.get("latent") or 2 * heads * case["head_dim"])
    layers = [LayerKind("full", case["layers"] - windows, token_bytes)]
    layers += [LayerKind("window", windows, token_bytes, window=case["window"])] if windows else []
    layout = sglang_layout(layers, case["page_size"])
    room = room_in_layout(Deployment("llama-3.1-8b", "sglang"), layout, case["available"])
    if not windows:
        return {"tokens": room.tokens, "window_tokens": None}
    seconds = int(room.tokens * layout.second_ratio) // case["page_size"] * case["page_size"]
    # a block's bytes are whole in ours, where SGLang has a fraction of the windows' bytes
    return {"tokens": pytest.approx(room.tokens, rel=2e-5), "window_tokens": pytest.approx(seconds, rel=2e-5)}


@pytest.mark.parametrize("vector", SGLANG_VECTORS, ids=lambda vector: str(vector["case"].get("tp")))
def test_a_pool_is_sized_as_in_sglang(vector):
    assert ours_in_sglang(vector["case"]) == vector["room"]


LINES = json.loads(PATH.with_name("start_up_lines.json").read_text())


def is_held_out(line):
    """Half of the lines, by a hash: the constants were set without them."""
    deployment = json.dumps(line["deployment"], sort_keys=True)
    return sha256(f"{line['name']} {deployment}".encode()).digest()[0] % 2 == 1


@pytest.mark.parametrize("held_out", [False, True])
def test_activations_are_those_of_public_start_up_lines(held_out):
    errors = {}
    for line in LINES:
        if is_held_out(line) is held_out:
            deployment = Deployment(line["config"], **line["deployment"])
            ours = vllm_memory.activation_bytes(deployment, gpu(deployment.gpu)) / GIB
            errors[line["name"], line["deployment"]["engine_version"]] = ours / line["activation_gib"] - 1
    assert len(errors) >= 10
    assert median(map(abs, errors.values())) < 0.006
    assert max(map(abs, errors.values())) < 0.1, errors  # the largest are of models with images


@pytest.mark.parametrize("held_out", [False, True])
def test_libraries_are_those_of_public_start_up_lines(held_out):
    apart = []
    for line in LINES:
        if is_held_out(line) is held_out:
            deployment = Deployment(line["config"], **line["deployment"])
            apart.append(abs(vllm_memory.library_bytes(deployment, gpu(deployment.gpu)) / GIB - line["library_gib"]))
    assert median(apart) < 0.05 and max(apart) < 0.25
