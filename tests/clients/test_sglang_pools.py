"""What one GPU keeps of a token is what SGLang's own rules of its pools make of a model's config.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `sglang` among them.
"""

import pytest

from kvtrace.serving.deployment import Deployment
from kvtrace.serving.models.layers import rank_layers
from tests.clients import in_engine
from tests.clients.whole_configs import whole_config

DTYPES = {"bfloat16": "bfloat16", "fp8_e4m3": "float8_e4m3fn"}
MODELS = [
    "llama-3.1-8b", "qwen3-235b-a22b", "deepseek-v3", "deepseek-v3.2", "glm-5.2", "kimi-k2.5", "qwen3-next-80b-a3b",
    "qwen3.5-397b-a17b", "nemotron-3-nano-30b-a3b", "kimi-k3", "gpt-oss-20b", "mimo-v2.5",
]  # fmt: skip
ROWS = [
    (name, gpus, dtype, gpu) for name in MODELS for gpus in (1, 8) for dtype in DTYPES for gpu in ("h100", "b200")
]  # fmt: skip


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """SGLang's sizes of each row."""
    cases = [
        {"config": whole_config(name), "tensor_parallel_size": gpus, "kv_cache_dtype": DTYPES[dtype],
         "packed": gpu == "h100"} for name, gpus, dtype, gpu in ROWS
    ]  # fmt: skip
    said = in_engine.answers(cases, tmp_path_factory.mktemp("pools"), "sglang", "sglang_pools.py")
    return dict(zip(ROWS, said, strict=True))


@in_engine.needs("sglang")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_one_gpu_keeps_as_much_as_in_sglang(row, pools):
    name, gpus, dtype, gpu = row
    kinds = rank_layers(Deployment(name, "sglang", gpu=gpu, tensor_parallel_size=gpus, kv_cache_dtype=dtype))
    full = [kind for kind in kinds if kind.kind in ("full", "latent")]
    real, windows = pools[row], [kind for kind in kinds if kind.kind == "window"]
    ours = sum(kind.bytes_per_token for kind in full)
    if windows:  # its rule for models without windows counts all layers as full
        ours = ours // sum(kind.layers for kind in full) * real["full_layers"]
        assert [kind.token_bytes for kind in windows] == [real["window"]]
    assert ours == real["cell"]
    assert sum(kind.layers * kind.state_bytes for kind in kinds) == (real["states"] or 0)
