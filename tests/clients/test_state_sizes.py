"""Values of a state are those of vLLM's own shape functions, for each mechanism, on models and on drawn sizes.

KVTRACE_CLIENTS names a folder of environments (see test_load.py); `vllm` needs `pip install vllm==0.33.0`.
"""

import json
import math
import os
import random
import subprocess
from pathlib import Path

from kvtrace.serving.models.config import Fields, read_config
from kvtrace.serving.models.states import state_size
from tests.clients.in_vllm import PYTHON, needs_vllm


def arguments(config):
    """vLLM's function for a config, and its arguments, as the model classes of vLLM pass them."""
    get = config.get
    if linear := get("linear_attn_config"):
        return "kda_state_shape", {"num_heads": linear["num_heads"], "head_dim": linear["head_dim"],
                                   "conv_kernel_size": linear["short_conv_kernel_size"]}  # fmt: skip
    if "linear_num_heads" in config:
        return "kda_state_shape", {"num_heads": get("linear_num_heads"), "head_dim": get("linear_head_dim"),
                                   "conv_kernel_size": get("linear_conv_kernel_dim")}  # fmt: skip
    if "linear_num_key_heads" in config:
        return "gated_delta_net_state_shape", {
            "num_k_heads": get("linear_num_key_heads"), "num_v_heads": get("linear_num_value_heads"),
            "head_k_dim": get("linear_key_head_dim"), "head_v_dim": get("linear_value_head_dim"),
            "conv_kernel_size": get("linear_conv_kernel_dim"),
        }  # fmt: skip
    if "mamba_num_heads" in config:
        return "mamba2_state_shape", {
            "intermediate_size": get("mamba_num_heads") * get("mamba_head_dim"), "n_groups": get("n_groups"),
            "num_heads": get("mamba_num_heads"), "head_dim": get("mamba_head_dim"),
            "state_size": get("ssm_state_size"), "conv_kernel": get("conv_kernel"),
        }  # fmt: skip
    if "mamba_n_heads" in config:
        inner = get("mamba_d_ssm") or get("mamba_expand") * get("hidden_size")
        return "mamba2_state_shape", {
            "intermediate_size": inner, "n_groups": get("mamba_n_groups"), "num_heads": get("mamba_n_heads"),
            "head_dim": get("mamba_d_head"), "state_size": get("mamba_d_state"), "conv_kernel": get("mamba_d_conv"),
        }  # fmt: skip
    if "mamba_d_state" in config:
        return "mamba1_state_shape", {
            "intermediate_size": get("mamba_expand") * get("hidden_size"), "state_size": get("mamba_d_state"),
            "conv_kernel": get("mamba_d_conv"),
        }  # fmt: skip
    if "conv_L_cache" in config:
        return "short_conv_state_shape", {"intermediate_size": get("hidden_size"), "conv_kernel": get("conv_L_cache")}
    return "linear_attention_state_shape", {"num_heads": get("num_attention_heads"), "head_dim": get("head_dim")}


NAMED = ("qwen3-next-80b-a3b", "qwen3.5-397b-a17b", "kimi-k3", "glm-5.3-flash", "nemotron-3-nano-30b-a3b", "jamba-v0.1")
FIELDS = {
    "delta": ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
              "linear_conv_kernel_dim"),
    "nemotron": ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    "mamba2": ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand",
               "hidden_size"),
    "mamba1": ("mamba_d_state", "mamba_d_conv", "mamba_expand", "hidden_size"),
    "short": ("conv_L_cache", "hidden_size"),
    "lightning": ("num_attention_heads", "head_dim"),
}  # fmt: skip


def drawn(seed):
    rng = random.Random(seed)
    kind = rng.choice(sorted(FIELDS))
    config = {field: rng.randint(1, 12) for field in FIELDS[kind]}
    return config | ({"attn_type_list": [0, 1]} if kind == "lightning" else {})


@needs_vllm
def test_states_have_the_values_of_vllm_s_shapes(tmp_path):
    configs = [read_config(name).values for name in NAMED] + [drawn(seed) for seed in range(200)]
    configs.append({"linear_attn_config": {"num_heads": 3, "head_dim": 5, "short_conv_kernel_size": 2}})
    configs.append({"mamba_n_heads": 4, "mamba_d_head": 6, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_conv": 3,
                    "mamba_d_ssm": 24})  # fmt: skip
    cases = []
    for config in configs:
        function, values = arguments(config)
        world = "tp_size" if function == "linear_attention_state_shape" else "tp_world_size"
        cases.append([function, {world: 1, **values}])
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, Path(__file__).parent / "vllm_states.py", path]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    shapes = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("SHAPE ")]
    assert len(shapes) == len(configs)
    for config, (function, _), found in zip(configs, cases, shapes, strict=True):
        sizes = [math.prod(shape) for shape in found]
        size = state_size(Fields("config", config))
        ours = {"linear_attention_state_shape": [size.recurrent], "short_conv_state_shape": [size.conv]}
        assert ours.get(function, [size.conv, size.recurrent]) == sizes, config
