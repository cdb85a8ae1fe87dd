"""Room for KV: vectors from vLLM's own planner, public start-up lines, and small cases worked out by hand."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import median

import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.engines.cache_groups import sglang_layout, vllm_layout
from kvtrace.cache.layout import LayerKind
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import gpu, sglang_memory, vllm_memory
from kvtrace.serving.hardware.room import kv_room, least_gpus, room_in_layout
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
    layout = vllm_layout(
        layers_of(case), state_kernel=case["state_kernel"], block_size=case["block_size"],
        context_shards=case["context_ranks"],
    )  # fmt: skip
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


def device_of(deployment):
    return gpu(deployment.gpu) if deployment.gpu else None


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
            ours = vllm_memory.activation_bytes(deployment, device_of(deployment)) / GIB
            errors[line["name"], line["deployment"]["engine_version"]] = ours / line["activation_gib"] - 1
    assert len(errors) >= 10
    assert median(map(abs, errors.values())) < 0.006
    assert max(map(abs, errors.values())) < 0.1, errors  # the largest are of models with images


@pytest.mark.parametrize("held_out", [False, True])
def test_libraries_are_those_of_public_start_up_lines(held_out):
    apart = []
    for line in LINES:
        if is_held_out(line) is held_out and "library_gib" in line:
            deployment = Deployment(line["config"], **line["deployment"])
            apart.append(abs(vllm_memory.library_bytes(deployment, device_of(deployment)) / GIB - line["library_gib"]))
    assert median(apart) < 0.05 and max(apart) < 0.25


LLAMA = Deployment("llama-3.1-8b", gpu="h100", engine_version="0.19.0", gpu_memory_utilization=0.95)


def test_the_parts_of_a_room_are_those_of_a_start_up_log():
    room = kv_room(LLAMA)  # logged: 14.99 GiB of weights, 1.89 of activations, 0.25 of libraries, 58.11 for KV
    parts = [room.weight_bytes, room.activation_bytes, room.library_bytes, room.available_bytes]
    assert [part / GIB for part in parts] == pytest.approx([14.99, 1.89, 0.25, 58.11], abs=0.06)
    assert room.graph_bytes == 0 and room.usable_bytes == pytest.approx(0.95 * room.gpu_bytes)
    assert room.blocks == room.available_bytes // (16 * 131_072) and room.tokens == 16 * room.blocks
    assert room.logged_tokens == room.tokens and room.concurrency is None  # without a longest context
    assert room.sources["usable_bytes"] == "gpu_memory_utilization 0.95: as stated"


def test_latents_are_whole_on_each_gpu_and_heads_are_shared():
    latents = [kv_room(Deployment("deepseek-v3", tensor_parallel_size=tp, kv_cache_memory_bytes=GIB)) for tp in (1, 8)]
    assert [room.token_bytes for room in latents] == [70_272, 70_272]
    heads = [
        kv_room(Deployment("qwen3-30b-a3b", tensor_parallel_size=tp, kv_cache_memory_bytes=GIB)) for tp in (1, 4, 8)
    ]
    assert [room.token_bytes for room in heads] == [98_304, 24_576, 24_576]  # 4 KV heads: 8 GPUs have one each


def test_what_is_not_known_is_none():
    room = kv_room(Deployment("llama-3.1-8b"))
    assert (room.available_bytes, room.blocks, room.tokens, room.logged_tokens) == (None, None, None, None)
    assert room.block_bytes == 16 * 131_072
    pinned = kv_room(Deployment("gpt-oss-20b", kv_cache_memory_bytes=GIB))
    assert pinned.weight_bytes is None and pinned.tokens == int(pinned.blocks * 8)
    assert kv_room(replace(LLAMA, max_model_len=8192)).concurrency == pytest.approx(58.1, abs=0.1)


def test_logged_tokens_have_the_meaning_of_the_version():
    gemma = Deployment("gemma-3-27b", max_model_len=8192, kv_cache_memory_bytes=round(19.53 * GIB))
    old, new = (kv_room(replace(gemma, engine_version=version)) for version in ("0.19.0", "0.33.0"))
    assert (old.blocks, old.tokens) == (new.blocks, new.tokens)
    assert old.logged_tokens == old.blocks // 7 * 16  # as logged: 36,560
    assert new.logged_tokens == int(new.concurrency * 8192)
    assert kv_room(replace(gemma, max_model_len=None)).logged_tokens is None  # the config states no context


def test_the_default_share_is_that_of_the_version():
    shares = {
        version: vllm_memory.utilization(Deployment("llama-3.1-8b", engine_version=version))
        for version in ("0.19.1", "0.20.0", "0.33.0", None)
    }
    assert list(shares.values()) == [0.9, 0.92, 0.92, 0.9]
    assert "no version is stated" in kv_room(Deployment("llama-3.1-8b", gpu="h100")).sources["usable_bytes"]
    for wrong in (0, 1.5, -1):
        with pytest.raises(UsageError, match="--gpu-memory-utilization must be"):
            vllm_memory.utilization(Deployment("llama-3.1-8b", gpu_memory_utilization=wrong))


def test_graphs_take_memory_unless_they_are_off():
    with_graphs = Deployment("qwen3.5-35b-a3b", gpu="h100", engine_version="0.24.0")
    device = gpu("h100")
    assert vllm_memory.graph_bytes(with_graphs, device) > 0
    assert vllm_memory.graph_bytes(replace(with_graphs, enforce_eager=True), device) == 0
    assert vllm_memory.graph_bytes(replace(with_graphs, engine_version="0.19.0"), device) == 0


def test_weights_that_do_not_fit_are_refused_with_a_size_that_works(tmp_path):
    large = Deployment("llama-3.1-70b", gpu="h100")
    with pytest.raises(UsageError, match=r"the weights need 141 GB on each GPU; h100 has \d+ GB for them") as caught:
        kv_room(large)
    size = int(str(caught.value).rpartition("--tensor-parallel-size ")[2].rstrip("."))
    assert size > 1 and kv_room(replace(large, tensor_parallel_size=size)).tokens > 0
    assert least_gpus(large).tensor_parallel_size == size
    small = tmp_path / "small.json"
    small.write_text('{"name": "small", "flops": 1e14, "bandwidth": 1e12, "memory": 2e9, "price_per_hour": 0}')
    with pytest.raises(UsageError, match="small has 1 GB for them. Use GPUs with more memory."):
        kv_room(replace(large, gpu=str(small)))


def test_more_tokens_need_more_gpus():
    large = Deployment("llama-3.1-70b", gpu="h100")
    sizes = [least_gpus(large, tokens).gpus_per_instance for tokens in (1, 300_000, 1_500_000)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert least_gpus(large, 10**9) is None
    with pytest.raises(UsageError, match="Give --gpu"):
        least_gpus(Deployment("llama-3.1-70b"))
    with pytest.raises(UsageError, match="Try vllm or sglang"):
        kv_room(Deployment("llama-3.1-8b", "reference", gpu="h100"))
