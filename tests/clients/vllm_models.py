"""vLLM: its own models, built without weights as on a GPU, and laid out; run in vLLM's environment as CASES.

A case, a line of JSON, says config (a model's config.json), capability (the GPU's, as [9, 0]) and options (of vLLM's
EngineArgs). Prints, a case a line, vLLM's version, the groups ([kind, layers, block_size, window]), the bytes of a
block, the scheduler's and the hash block size, the order of the cache's dimensions, the attention backends, and the
checkpoints that the states' kernels save inside a step (their blocks and alignment).

Engine arguments, configs, model classes, layers, backends, alignment and planner are vLLM's, unmodified. Ours are a
platform that answers as a GPU of that capability, tensors without memory ("meta"), and empty stand-ins for compiled
kernels and for packages that only run them: no kernel runs.
"""

# ruff: noqa: E402 - the stand-ins come before vLLM

import json
import os
import sys
import tempfile
import types

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
import vllm_absent

vllm_absent.ABSENT += ("compressed_tensors", "flashinfer")
for _name in ("_C_stable_libtorch", "_C", "_moe_C", "vllm_flash_attn._vllm_fa2_C", "vllm_flash_attn._vllm_fa3_C"):
    sys.modules[f"vllm.{_name}"] = types.ModuleType(f"vllm.{_name}")


class Kernel:
    """Stands for a compiled kernel and its overload; it supports nothing."""

    def __call__(self, *args, **kwargs):
        return False

    def __getattr__(self, name):
        return self


class Kernels:
    """Stands for vLLM's compiled kernels; while modules are loaded, it has only the questions about hardware."""

    models_are_loaded = False

    def __getattr__(self, name):
        if name.startswith("__") or not (self.models_are_loaded or "supports" in name):
            raise AttributeError(name)
        return Kernel()


for _name in ("_C", "_moe_C", "_vllm_fa2_C", "_vllm_fa3_C"):
    setattr(torch.ops, _name, Kernels())

import vllm.model_executor.models.registry as registry
import vllm.platforms
import vllm.triton_utils
from vllm import __version__
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class GPU(NonNvmlCudaPlatform):
    """A GPU of 80 GB that nothing can run on."""

    capability = DeviceCapability(9, 0)

    @classmethod
    def get_device_capability(cls, device_id=0):
        return cls.capability

    @classmethod
    def has_device_capability(cls, capability, device_id=0):
        wanted = capability if isinstance(capability, tuple) else divmod(capability, 10)
        return tuple(cls.capability) >= wanted

    @classmethod
    def get_device_name(cls, device_id=0):
        return "a GPU without kernels"

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        return 80 << 30

    @classmethod
    def current_device(cls):
        return "meta"

    @classmethod
    def get_cuda_runtime_major(cls):
        return 13


class Handle:
    """A stream or an event that nobody uses."""

    def __init__(self, *args, **kwargs):
        pass


class KernelConfig:
    """A configuration of a Triton kernel, where Triton is absent."""

    def __init__(self, kwargs=None, num_warps=4, num_stages=1, **rest):
        self.kwargs, self.num_warps, self.num_stages = kwargs or {}, num_warps, num_stages


vllm.platforms._current_platform = GPU()
vllm.triton_utils.triton.Config = KernelConfig
torch.cuda.current_device = lambda: 0
torch.cuda.Stream, torch.cuda.Event = type("Stream", (Handle,), {}), type("Event", (Handle,), {})
registry._run_in_subprocess = lambda inspect: inspect()  # a new process would not have the stand-ins

from vllm.distributed import destroy_model_parallel, init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import get_model_cls, initialize_model
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_planning import _pool_bytes_per_block, get_global_kv_cache_groups
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs
from vllm_layout import group


def engine_config(case):
    """vLLM's configuration of a server of this model."""
    GPU.capability = DeviceCapability(*case["capability"])
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(case["config"], file)
    args = EngineArgs(
        model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, dtype="bfloat16",
        **case["options"],
    )  # fmt: skip
    return args.create_engine_config()


def build(config):
    """The model's layers that keep something, on a device without memory."""
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, backend="gloo")
        destroy_model_parallel()  # of the case before; models of experts have one group more
        initialize_model_parallel(1, 1)
    with set_current_vllm_config(config), torch.device("meta"):
        Kernels.models_are_loaded = False
        get_model_cls(config.model_config)
        Kernels.models_are_loaded = True
        torch.set_default_dtype(torch.bfloat16)
        initialize_model(config)
        torch.set_default_dtype(torch.float32)
    return get_layers_from_vllm_config(config, AttentionLayerBase)


def lay_out(case):
    """The steps of vLLM's EngineCore and worker, from the model to the groups."""
    config = engine_config(case)
    layers = build(config)
    GPU.update_block_size_for_backend(config)
    backends = {layer.get_attn_backend() for layer in layers.values()}
    with set_current_vllm_config(config):
        specs = {name: spec for name, layer in layers.items() if (spec := layer.get_kv_cache_spec(config)) is not None}
        names = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
        layout = resolve_kv_cache_layout(config, [names], specs.values())
        groups = get_global_kv_cache_groups(config, [specs])
    scheduler, hashed = resolve_kv_cache_block_sizes(types.SimpleNamespace(kv_cache_groups=groups), config)
    states = [one for g in groups for one in iter_layer_specs(g.kv_cache_spec) if isinstance(one, MambaSpec)]
    saved = {(one.num_prefill_checkpoint_blocks, one.prefill_checkpoint_alignment or 0) for one in states}
    return {
        "groups": [group(one) for one in groups], "block_bytes": _pool_bytes_per_block(config, groups),
        "scheduler_block_size": scheduler, "hash_block_size": hashed, "dimensions": layout.name,
        "backends": sorted(backend.get_name() for backend in backends), "checkpoints": sorted(saved),
        "caching": [config.cache_config.enable_prefix_caching, config.cache_config.prefix_cache_retention_interval],
    }  # fmt: skip


if __name__ == "__main__":
    with open(sys.argv[1]) as lines:
        for line in lines:
            print(json.dumps({"version": __version__} | lay_out(json.loads(line))), flush=True)
