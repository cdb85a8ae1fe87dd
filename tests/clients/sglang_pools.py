"""SGLang: the bytes of its pools on one GPU; run in SGLang's environment as CASES.

A case, a line of JSON, says config (a model's config.json), tensor_parallel_size, kv_cache_dtype (torch's name) and
packed (whether the backend reads FP8 latents with scales: FlashMLA on a Hopper GPU, not TensorRT-LLM's on Blackwell).
Prints, a case a line, SGLang's version, the bytes of a token in the layers that keep all of them (`cell`, of
`full_layers` layers), in one layer with a window (`window`), and of the states of a request (`states`).

Configs, shapes of states and the rules of the pools are SGLang's, unmodified. Ours are stand-ins for compiled kernels,
and the values of a server that its rules read: parallel sizes, backends, no hierarchical cache.
"""

import contextlib
import json
import os
import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

from sglang_absent import stand_in

ABSENT = """compressed_tensors cuda cutlass decord deep_gemm flashinfer gguf interegular llguidance mooncake nixl
openai_harmony outlines partial_json_parser pybase64 quack sgl_kernel soundfile tilelang timm torch_memory_saver torchao
torchvision triton tvm_ffi uvloop xgrammar zmq"""
KERNELS = ("kernels", "jit_kernel", "srt.layers.quantization", "srt.layers.moe")
stand_in(ABSENT.split(), [f"sglang.{module}" for module in KERNELS])

from importlib.metadata import version  # noqa: E402

import torch  # noqa: E402
from sglang.srt.configs.hybrid_arch import mambaish_config  # noqa: E402
from sglang.srt.configs.model_config import AttentionArch, ModelConfig  # noqa: E402
from sglang.srt.layers.cp import utils as context  # noqa: E402
from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator  # noqa: E402


def server(case):
    """The values of a server that the rules read, by the name of the function that gives them."""
    gpus = case["tensor_parallel_size"]
    parallel = SimpleNamespace(attn_tp_size=gpus, attn_dcp_size=1, tp_size=gpus, attn_cp_size=1)
    memory = dict.fromkeys(("enable_hisparse", "enable_unified_cache_external_linker", "enable_hierarchical_cache"))
    backend = "flashmla_kv" if case["packed"] else "trtllm"
    kernel = SimpleNamespace(dsa_prefill_backend=backend, dsa_decode_backend=backend)
    return {
        "get_parallel": lambda: parallel, "linear_attn_tp_size": lambda: gpus,
        "get_memory": lambda: SimpleNamespace(**memory), "get_exec": lambda: SimpleNamespace(kernel=kernel),
        "get_disagg": lambda: SimpleNamespace(disaggregation_mode="null"),
    }  # fmt: skip


def pool(case):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(case["config"], file)
    with contextlib.ExitStack() as patches:
        for name, value in server(case).items():
            for module in [module for path, module in sys.modules.items() if path.startswith("sglang.srt.")]:
                if name in vars(module):
                    patches.enter_context(mock.patch.object(module, name, value))
        undivided = {
            "get_glm_dsa_layer_split_effective_num_layers": lambda kvc, layers: layers,
            "get_glm_dsa_cp_layer_shard_info": lambda kvc: (0, 1),
        }  # no context parallelism
        patches.enter_context(mock.patch.multiple(context, **undivided))
        return sizes(case, ModelConfig(folder, dtype="bfloat16"))


def sizes(case, model):
    """The sizes that the configurator of pools computes."""
    layers, states = model.num_hidden_layers, mambaish_config(model)
    full = len(states.full_attention_layer_ids) if states else layers
    kvc = SimpleNamespace(
        model_config=model, kv_cache_dtype=getattr(torch, case["kv_cache_dtype"]), mambaish_config=states,
        use_mla_backend=model.attention_arch == AttentionArch.MLA, is_draft_worker=False,
        server_args=SimpleNamespace(enable_hisparse=False),
        layer_info=SimpleNamespace(start_layer=0, end_layer=layers, num_effective_layers=layers),
    )  # fmt: skip
    configurator = object.__new__(DefaultPoolConfigurator)
    configurator.kv_cache_dtype_str = "auto"
    heads, size = model.get_swa_num_kv_heads(case["tensor_parallel_size"]), kvc.kv_cache_dtype.itemsize
    return {
        "cell": configurator._compute_cell_size(kvc, full), "full_layers": full,
        "window": heads * ((model.swa_head_dim or 0) + (model.swa_v_head_dim or 0)) * size,
        "states": states.mamba2_cache_params.mamba_cache_per_req if states else None,
    }  # fmt: skip


if __name__ == "__main__":
    with open(sys.argv[1]) as lines:
        for line in lines:
            print(json.dumps({"version": version("sglang")} | pool(json.loads(line))), flush=True)
