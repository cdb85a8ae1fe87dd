"""Models have the cache groups, block sizes and bytes that vLLM's own planner gives them.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_layout` writes the vectors anew.
"""

import json
import os
from pathlib import Path

import numpy as np

from kvtrace.cache.engines.cache_groups import STATE_KERNELS, vllm_layout
from kvtrace.cache.layout import LayerKind
from tests.cache.test_vllm_layout import VECTORS, layers_of, ours
from tests.clients.in_vllm import answers, needs_vllm

BF16, MIXED = ["bfloat16", "bfloat16"], ["bfloat16", "float32"]  # of convolution and state


def full(token_bytes):
    return LayerKind("full", 1, token_bytes)


def latent(token_bytes):
    return LayerKind("latent", 1, token_bytes)


def window(tokens, token_bytes):
    return LayerKind("window", 1, token_bytes, window=tokens)


def chunk(tokens, token_bytes):
    return LayerKind("chunk", 1, token_bytes, window=tokens)


def state(state_bytes):
    return LayerKind("state", 1, state_bytes=state_bytes)


def delta_net(types, key_heads=16, value_heads=32):
    """Of Qwen: heads of 128 and a convolution over 4 tokens."""
    return ["gated_delta_net_state_shape", {
        "tp_world_size": 1, "num_k_heads": key_heads, "num_v_heads": value_heads, "head_k_dim": 128, "head_v_dim": 128,
        "conv_kernel_size": 4,
    }, types]  # fmt: skip


def mamba2(types, heads, head_dim, groups, size=128):
    return ["mamba2_state_shape", {
        "tp_world_size": 1, "intermediate_size": heads * head_dim, "n_groups": groups, "num_heads": heads,
        "head_dim": head_dim, "state_size": size, "conv_kernel": 4,
    }, types]  # fmt: skip


def delta_attention(heads):
    """Of Kimi and Ling: heads of 128."""
    return ["kda_state_shape", {"tp_world_size": 1, "num_heads": heads, "head_dim": 128}, MIXED]


# name -> (a letter for each layer that has a cache, what the letters are, the kernel of states, their shapes in vLLM).
# Bytes: 16-bit keys and values if the name says nothing else; dimensions as published. Of Nemotron-3-Super and
# Ling-3.0-flash the order and the number of layers are examples; vLLM's issues state their blocks.
MODELS = {
    "Llama-3.1-8B": ("f" * 32, {"f": full(4096)}, "split", None),
    "DeepSeek-V3": ("l" * 61, {"l": latent(1152)}, "split", None),
    "Mistral-7B-v0.1": ("w" * 32, {"w": window(4096, 4096)}, "split", None),
    "gpt-oss-20b": ("wf" * 12, {"w": window(128, 2048), "f": full(2048)}, "split", None),
    "gpt-oss-120b": ("wf" * 18, {"w": window(128, 2048), "f": full(2048)}, "split", None),
    "Gemma-2-9b": ("wf" * 21, {"w": window(4096, 8192), "f": full(8192)}, "split", None),
    "Gemma-3-27b": ("wwwwwf" * 10 + "ww", {"w": window(1024, 8192), "f": full(8192)}, "split", None),
    "Gemma-3n-E4B": ("wwwwf" * 4, {"w": window(512, 2048), "f": full(2048)}, "split", None),
    "Gemma-4-26B-A4B": ("wwwwwf" * 5, {"w": window(1024, 8192), "f": full(4096)}, "split", None),
    "Command-R7B": ("wwwf" * 8, {"w": window(4097, 4096), "f": full(4096)}, "split", None),  # vLLM adds 1
    "Llama-4-Scout": ("cccf" * 12, {"c": chunk(8192, 4096), "f": full(4096)}, "split", None),
    "MiMo-V2-Flash": (
        "fwwww" + "fwwwww" * 7 + "f", {"f": full(2560), "w": window(128, 5120)}, "split", None,
    ),
    "Qwen3-Next-80B-A3B on an A100": ("sssf" * 12, {"s": state(1097728), "f": full(2048)}, "split", delta_net(BF16)),
    "Qwen3-Next-80B-A3B on an H100": (
        "sssf" * 12, {"s": state(1097728), "f": full(2048)}, "flashinfer", delta_net(BF16),
    ),
    "Qwen3.5-4B on an A100": (
        "sssf" * 8, {"s": state(2146304), "f": full(4096)}, "split", delta_net(MIXED),
    ),
    "Qwen3.5-4B on an H100": ("sssf" * 8, {"s": state(2146304), "f": full(4096)}, "flashinfer", delta_net(MIXED)),
    "Nemotron-H-8B": (
        "sss" + "s" + "f" + "sssss" + "f" + "sssss" + "f" + "sssss" + "f" + "sssss",
        {"s": state(4255744), "f": full(4096)}, "mamba2", mamba2(MIXED, 128, 64, 8),
    ),
    "Nemotron-3-Super-120B with an FP8 cache": (
        "sssssf" * 8, {"s": state(4255744), "f": full(512)}, "mamba2", mamba2(MIXED, 128, 64, 8),
    ),
    "Nemotron-3.5-Lightning-30B-A3B": (
        "sssf" + "sssf" + "ssssf" * 4 + "s", {"s": state(2134016), "f": full(1024)}, "mamba2", mamba2(MIXED, 64, 64, 8),
    ),
    "Granite-4.0-H-Small": (
        "sssssf" + "sssssssssf" * 3 + "ssss", {"s": state(2147840), "f": full(4096)}, "mamba2",
        mamba2(BF16, 128, 64, 1),
    ),
    "Falcon-H1-34B": (
        "fs" * 72, {"s": state(2127872), "f": full(2048)}, "mamba2", mamba2(BF16, 32, 128, 2, size=256),
    ),
    "Jamba-1.5-Mini": (
        "ssssfsss" * 4, {"s": state(311296), "f": full(4096)}, "split",
        [
            "mamba1_state_shape",
            {"tp_world_size": 1, "intermediate_size": 8192, "state_size": 16, "conv_kernel": 4}, BF16,
        ],
    ),
    "LFM2-1.2B": (
        "ssfssfssfsfsfsfs", {"s": state(8192), "f": full(2048)}, "split",
        ["short_conv_state_shape", {"tp_world_size": 1, "intermediate_size": 2048, "conv_kernel": 3}, BF16[:1]],
    ),
    "MiniMax-Text-01": (
        "sssssssf" * 10, {"s": state(2097152), "f": full(4096)}, "split",
        ["linear_attention_state_shape", {"num_heads": 64, "tp_size": 1, "head_dim": 128}, BF16[:1]],
    ),
    "Ling-3.0-flash": (
        "sssssssl" * 4, {"s": state(2170880), "l": latent(1152)}, "flashkda", delta_attention(32),
    ),
    "Kimi-Linear-48B-A3B": (
        "sssl" * 6 + "ssl", {"s": state(2170880), "l": latent(1152)}, "flashkda", delta_attention(32),
    ),
    "Mamba-2-2.7B": ("s" * 64, {"s": state(1342976)}, "mamba2", mamba2(BF16, 80, 64, 1)),
}  # fmt: skip


def case_of(letters, meaning, kernel="split", block_size=None, hybrid=True, retention_interval=0):
    """A case of ours, with each kind of layer as a row of numbers."""
    return {
        "layers": letters,
        "kinds": {x: [one.kind, one.token_bytes, one.window, one.state_bytes] for x, one in meaning.items()},
        "state_kernel": kernel, "block_size": block_size, "hybrid": hybrid, "retention_interval": retention_interval,
    }  # fmt: skip


def model_case(name, **options):
    letters, meaning, kernel, _ = MODELS[name]
    return case_of(letters, meaning, kernel, **options)


def laid_out(cases, folder):
    """What vLLM's own planner says of each case."""
    alignments = {name: kernel.block_alignment for name, kernel in STATE_KERNELS.items()}
    declared = {name: value if value > 1 else None for name, value in alignments.items()}  # only by flashinfer's layers
    return answers([case | {"alignment": declared[case["state_kernel"]]} for case in cases], folder, "vllm_layout.py")


def random_case(rng):
    """One to three kinds of layers in any order, whose bytes divide each other or not, and any options."""
    sizes = [512, 576, 1024, 1152, 2048, 3072, 4096, 8192]
    kinds = []
    for kind in rng.choice(["full", "latent", "window", "chunk", "state"], size=rng.integers(1, 4)).tolist():
        kinds.append(
            LayerKind(
                kind, 1, 0 if kind == "state" else int(rng.choice(sizes)),
                window=int(rng.choice([128, 512, 1024])) if kind in ("window", "chunk") else 0,
                state_bytes=int(rng.integers(1, 400)) * 1024 if kind == "state" else 0,
            )
        )  # fmt: skip
    count = rng.integers(1, 25, size=len(kinds))
    letters = "".join("abc"[i] for i in rng.permutation(np.repeat(np.arange(len(kinds)), count)))
    block_size = [None, None, None, None, 16, 32, 48, 64, 128, 24][rng.integers(10)]
    interval = [0, 0, 0, 0, 0, None, 4096, 1 << 16][rng.integers(8)]
    kernel = list(STATE_KERNELS)[rng.integers(len(STATE_KERNELS))]
    meaning = dict(zip("abc", kinds, strict=False))
    return case_of(letters, meaning, kernel, block_size, hybrid=bool(rng.integers(8)), retention_interval=interval)


def wanted(real):
    """A layout of vLLM's in the words of `ours`."""
    if "refused" in real:
        return "refused"
    return {key: real[key] for key in ("groups", "block_bytes", "scheduler_block_size", "hash_block_size")}


@needs_vllm
def test_random_models_are_laid_out_as_in_vllm(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    cases = [random_case(rng) for _ in range(int(os.environ.get("KVTRACE_ROWS", 1000)))]
    real = laid_out(cases, tmp_path)
    for case, answer in zip(cases, real, strict=True):
        assert ours(case) == wanted(answer), f"seed {seed}: {case} {answer}"
    assert {"refused" in answer for answer in real} == {True, False}


@needs_vllm
def test_a_models_states_have_vllms_bytes_and_checkpoints_its_grid(tmp_path):
    names = [name for name, row in MODELS.items() if row[3]]
    for name, real in zip(
        names, laid_out([model_case(n) | {"state": MODELS[n][3]} for n in names], tmp_path), strict=True
    ):
        _, meaning, kernel, _ = MODELS[name]
        assert meaning["s"].state_bytes == real["state_bytes"], name
        if kernel == "flashinfer":
            layout = vllm_layout(layers_of(model_case(name)), state_kernel=kernel)
            assert layout.internal_checkpoint_alignment == real["grid"], name


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    cases = [vector["case"] for vector in VECTORS["vectors"]]
    for vector, real in zip(VECTORS["vectors"], laid_out(cases, tmp_path), strict=True):
        assert vector["layout"] == wanted(real), vector["name"]


def make_vectors(folder):
    """Every published model, some with other options, and random ones, with what vLLM says of each."""
    rng = np.random.default_rng(5)
    named = [(name, model_case(name)) for name in MODELS]
    named += [(f"{name}, blocks of 64", model_case(name, block_size=64)) for name in MODELS]
    named += [(f"{name}, one group", model_case(name, hybrid=False)) for name in MODELS]
    named += [(f"random {number}", random_case(rng)) for number in range(60)]
    real = laid_out([case for _, case in named], folder)
    return {
        "engine": "vllm", "version": real[0]["version"],
        "vectors": [
            {"name": name, "case": case, "layout": wanted(said)} for (name, case), said in zip(named, real, strict=True)
        ],
    }  # fmt: skip


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        made = make_vectors(Path(temporary))
    text = json.dumps(made, separators=(",", ":")).replace('{"name"', '\n{"name"')
    (Path(__file__).parent.parent / "vectors/vllm_layout.json").write_text(text + "\n")
