"""What one GPU keeps under a deployment, and how it is laid out, is what vLLM's own models and planner make of it.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them; KVTRACE_ROWS is how many cases of
the vectors are asked anew. `KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_deployments` writes the vectors.
"""

import json
import os
import random
from pathlib import Path

from kvtrace.serving.models.config import MODELS
from tests.clients.in_vllm import answers, needs_vllm
from tests.clients.whole_configs import EAGLE_HEAD, FAMILIES, UNSERVED, whole_config
from tests.serving.test_rank_layout import CAPABILITIES, PATH, VECTORS

MTP = {"method": "mtp", "num_speculative_tokens": 1}
KINDS = [  # a model of each kind of layers
    "llama-3.1-8b", "gpt-oss-20b", "gemma-3-27b", "gemma-4-26b-a4b", "llama-4-scout", "deepseek-v3", "deepseek-v3.2",
    "glm-5.2", "deepseek-v4-flash", "deepseek-v4-pro", "qwen3-235b-a22b", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b",
    "qwen3.5-397b-a17b", "nemotron-3-nano-30b-a3b", "jamba-v0.1", "mimo-v2.5", "mistral-7b-v0.1",
]  # fmt: skip
OTHERS = [  # further options of these
    {"pipeline_parallel_size": 2}, {"pipeline_parallel_size": 3, "tensor_parallel_size": 2},
    {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
    {"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
    {"tensor_parallel_size": 8, "decode_context_parallel_size": 8, "kv_cache_dtype": "fp8"},
    {"tensor_parallel_size": 8, "decode_context_parallel_size": 3},
    {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2},
    {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2,
     "kv_cache_dtype": "fp8"},
    {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 3},
    {"tensor_parallel_size": 3}, {"block_size": 64}, {"block_size": 128}, {"block_size": 256}, {"block_size": 512},
    {"kv_cache_dtype": "fp8_ds_mla"}, {"kv_cache_dtype": "fp8_e5m2"}, {"kv_cache_dtype": "float16"},
    {"kv_cache_dtype": "bfloat16"}, {"disable_hybrid_kv_cache_manager": True}, {"speculative_config": MTP},
    {"speculative_config": MTP | {"num_speculative_tokens": 3}, "tensor_parallel_size": 8},
    {"speculative_config": MTP, "pipeline_parallel_size": 2},
]  # fmt: skip
NOT_MODELLED = {  # model -> options that vLLM takes, and that are refused or unknown here
    "deepseek-v4-flash": ["'tensor_parallel_size': 3}"], "deepseek-v4-pro": ["'tensor_parallel_size': 3}"],
    "gemma-4-26b-a4b": ["pipeline"], "mimo-v2.5": ["pipeline", "prefill", "fp8_ds_mla", "fp8_e5m2"],
}  # fmt: skip
EAGLE = ["llama-3.1-8b", "qwen3-235b-a22b", "gpt-oss-20b"]  # models to which the head of a Llama is added


def cases():
    """(model, GPU, vLLM's options) of each vector."""
    served = [name for name in MODELS if MODELS[name].config["model_type"] in FAMILIES and name not in UNSERVED]
    for name in served:
        for gpus in (1, 2, 4, 8, 16):
            yield from ((name, "h100", {"tensor_parallel_size": gpus, "kv_cache_dtype": kv}) for kv in ("auto", "fp8"))
    for name in KINDS:
        refused = NOT_MODELLED.get(name, [])
        yield from ((name, "h100", row) for row in OTHERS if not any(part in str(row) for part in refused))
    for name in [*KINDS, "kimi-k2.5"]:
        for gpu in sorted(set(CAPABILITIES) - {"h100"}):
            if not (name.startswith("deepseek-v4") and gpu == "rtx-pro-6000"):  # its kernels need a real FlashInfer
                yield from ((name, gpu, row) for row in ({}, {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8"}))
    for name in EAGLE:
        for gpus in (1, 8):
            yield name, "h100", {"tensor_parallel_size": gpus, "speculative_config": MTP | {"method": "eagle3"}}


def as_case(name, gpu, options):
    """A case for vllm_models.py."""
    drafter = {"drafter": EAGLE_HEAD} if "eagle" in str(options.get("speculative_config")) else {}
    return {"config": whole_config(name), "capability": CAPABILITIES[gpu], "options": dict(options)} | drafter


def wanted(real, model, options):
    """vLLM's layout in the words of the vectors: [groups, bytes of a block], or why it refuses."""
    if "refused" in real:
        return " ".join(real["reason"].split())[:80]
    groups = [[kind, layers, span, window] for (kind, layers, _, window), span in
              zip(real["groups"], real["spans"], strict=True)]  # fmt: skip
    if options.get("pipeline_parallel_size", 1) > 1:
        groups = [[kind, 0, span, window] for kind, _, span, window in groups]  # layers of a stage, which differ
    layout = [counted(groups), real["block_bytes"]]
    if model == "kimi-k3":  # its kernel, which decides on checkpoints, needs a real FlashKDA
        return layout
    return [*layout, max([row[1] for row in real["checkpoints"]], default=0)]


def counted(groups):
    """Equal groups as one with their number, sorted."""
    return sorted([groups.count(group), *group] for group in map(list, {tuple(group) for group in groups}))


def asked(rows, folder):
    """What vLLM makes of each row; in a process for each GPU, since it remembers what a GPU can do."""
    real = {}
    for gpu in sorted({gpu for _, gpu, _ in rows}):
        numbers = [number for number, row in enumerate(rows) if row[1] == gpu]
        said = answers([as_case(*rows[number]) for number in numbers], folder, "vllm_models.py")
        real |= dict(zip(numbers, said, strict=True))
    return [real[number] for number in range(len(rows))]


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    seed = int.from_bytes(os.urandom(4))
    chosen = random.Random(seed).sample(VECTORS["vectors"], int(os.environ.get("KVTRACE_ROWS", 40)))
    rows = [(row["model"], row["gpu"], row["options"]) for row in chosen]
    for row, real in zip(chosen, asked(rows, tmp_path), strict=True):
        assert wanted(real, row["model"], row["options"]) == row["layout"], f"seed {seed}: {row}"


def make_vectors(folder):
    rows = list(cases())
    real = asked(rows, folder)
    vectors = [
        {"model": name, "gpu": gpu, "options": options, "layout": wanted(answer, name, options)}
        for (name, gpu, options), answer in zip(rows, real, strict=True)
    ]
    return {"engine": "vllm", "version": real[0]["version"], "vectors": vectors}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        made = make_vectors(Path(temporary))
    PATH.write_text(json.dumps(made, separators=(",", ":")).replace('{"model"', '\n{"model"') + "\n")
