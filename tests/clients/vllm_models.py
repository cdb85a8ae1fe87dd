"""vLLM: its own models, built without weights as on a GPU, and laid out; run in vLLM's environment as CASES.

A case, a line of JSON, says config (a model's config.json), capability (the GPU's, as [9, 0]), options (of vLLM's
EngineArgs, parallel sizes too) and, of an EAGLE head, drafter (its config.json). Prints, a case a line, vLLM's version,
the groups ([kind, layers, block_size, window]), the bytes of a block of the widest pipeline stage, the scheduler's and
the hash block size, the order of the cache's dimensions, the attention backends, the checkpoints that the states'
kernels save inside a step (their blocks and alignment), and the layers of the first GPU of each stage by what they keep
([kind, layers, bytes of a block's page, block_size]); or the reason of a refusal.

Engine arguments, configs, model classes, layers, backends, alignment and planner are vLLM's, unmodified. Ours are a
platform that answers as a GPU of that capability, tensors without memory ("meta"), and empty stand-ins for compiled
kernels and for packages that only run them: no kernel runs.
"""

# ruff: noqa: E402 - the stand-ins come before vLLM

import contextlib
import importlib
import json
import os
import sys
import tempfile
import types

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
import vllm_absent
from torch.overrides import TorchFunctionMode
from transformers.utils.import_utils import is_torchvision_available

vllm_absent.ABSENT += ("compressed_tensors", "deep_gemm", "flashinfer", "flashinfer_cubin")
sys.modules["vllm.third_party.deep_gemm"] = importlib.import_module("deep_gemm")
importlib.import_module("flashinfer.utils").get_trtllm_gen_multi_ctas_kv_counter_bytes = lambda *numbers: 1
is_torchvision_available()  # before there is a stand-in for it, which only models of images need
vllm_absent.ABSENT.append("torchvision")
_ATTENTION = (
    "vllm_flash_attn._vllm_fa2_C",
    "vllm_flash_attn._vllm_fa3_C",
    "_flashmla_C",
    "_flashmla_extension_C",
    "_flashkda_C",
)
for _name in ("_C_stable_libtorch", "_C", "_moe_C", *_ATTENTION):
    sys.modules[f"vllm.{_name}"] = types.ModuleType(f"vllm.{_name}")


class Kernel:
    """Stands for a compiled kernel and its overload; it supports nothing."""

    def __call__(self, *args, **kwargs):
        return False

    def __getattr__(self, name):
        return self


class Workspaces:
    """Stands for a kernel's questions about its workspace."""

    def __getattr__(self, name):
        return lambda *numbers: 1


class Kernels:
    """Stands for vLLM's compiled kernels; while modules are loaded, it has only the questions about hardware."""

    models_are_loaded = False

    def __getattr__(self, name):
        if name.startswith("__") or not (self.models_are_loaded or "supports" in name):
            raise AttributeError(name)
        return Kernel()


for _name in ("_C", "_moe_C", "_vllm_fa2_C", "_vllm_fa3_C"):
    setattr(torch.ops, _name, Kernels())

torch.ops._flashkda_C = Workspaces()
_REDUCE = "vllm.model_executor.kernels.linear.cute_dsl.gemm_rs_ar"  # exchanges between GPUs, of Kimi K3
sys.modules[_REDUCE] = types.ModuleType(_REDUCE)
sys.modules[_REDUCE].maybe_init_gemm_rs_ar = lambda *arguments, **options: False

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
    def num_compute_units(cls, device_id=0):
        return 132

    @classmethod
    def get_cuda_runtime_major(cls):
        return 13


class Handle:
    """A stream or an event that nobody uses."""

    def __init__(self, *args, **kwargs):
        pass


class OnMeta(TorchFunctionMode):
    """All tensors lie on "meta", also those that a model wants on a GPU; each number in one is 0."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.item:
            return 0.0
        if function is torch.Tensor.tolist:
            return [0] * len(args[0])
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return function(*(torch.device("meta") if is_gpu(value) else value for value in args), **kwargs)


def is_gpu(value):
    return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


class KernelConfig:
    """A configuration of a Triton kernel, where Triton is absent."""

    def __init__(self, kwargs=None, num_warps=4, num_stages=1, **rest):
        self.kwargs, self.num_warps, self.num_stages = kwargs or {}, num_warps, num_stages


vllm.platforms._current_platform = GPU()
vllm.triton_utils.triton.Config = KernelConfig
torch.cuda.current_device = torch.accelerator.current_device_index = lambda: 0
torch.accelerator.empty_cache = lambda: None
torch.accelerator.current_accelerator = lambda *args: torch.device("meta")
torch.cuda.Stream, torch.cuda.Event = type("Stream", (Handle,), {}), type("Event", (Handle,), {})
registry._run_in_subprocess = lambda inspect: inspect()  # a new process would not have the stand-ins

from vllm.distributed import (
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
    parallel_state,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import get_model_cls, initialize_model
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_planning import (
    _pool_bytes_per_block,
    _project_kv_cache_groups_to_worker,
    get_global_kv_cache_groups,
    max_memory_usage_bytes,
)
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size, resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.workspace import init_workspace_manager, is_workspace_manager_initialized
from vllm_layout import group, kind_of

Kernels.models_are_loaded = True
with contextlib.suppress(ImportError, AttributeError, TypeError, RuntimeError):  # a server of several GPUs asks for it
    importlib.import_module("vllm.compilation.passes.fusion.allreduce_rms_fusion")
Kernels.models_are_loaded = False


def engine_config(case):
    """vLLM's configuration of a server of this model."""
    GPU.capability = DeviceCapability(*case["capability"])
    options = dict(case["options"])
    if "drafter" in case:
        options["speculative_config"] |= {"model": folder_of(case["drafter"])}
    args = EngineArgs(
        model=folder_of(case["config"]), skip_tokenizer_init=True, load_format="dummy", enforce_eager=True,
        dtype="bfloat16", **options,
    )  # fmt: skip
    return args.create_engine_config()


def folder_of(config):
    """A folder with a model's config.json."""
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    return folder


def join_groups(parallel, stage):
    """The process is the first GPU of a pipeline stage; the others are not there."""
    if not torch.distributed.is_initialized():
        init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, backend="gloo")
    destroy_model_parallel()  # of the case before; models of experts have one group more
    sizes = {
        "_TP": parallel.tensor_parallel_size, "_PP": parallel.pipeline_parallel_size,
        "_DCP": parallel.decode_context_parallel_size, "_PCP": parallel.prefill_context_parallel_size,
        "_EP": parallel.tensor_parallel_size * parallel.prefill_context_parallel_size,
    }  # fmt: skip
    stated = {name: getattr(parallel, name) for name in PARALLEL}
    for name in PARALLEL:
        setattr(parallel, name, 1)
    initialize_model_parallel()
    for name, value in stated.items():
        setattr(parallel, name, value)
    for name, size in sizes.items():
        members = getattr(parallel_state, name)
        if members is not None:
            members.world_size, members.ranks = size, list(range(size))
            members.rank = members.rank_in_group = stage if name == "_PP" else 0


PARALLEL = [
    f"{name}_parallel_size" for name in ("tensor", "pipeline", "decode_context", "prefill_context", "data")
] + ["world_size"]  # fmt: skip


def build(config, stage):
    """The layers of a pipeline stage that keep something, on a device without memory; the drafter's are in the last."""
    parallel = config.parallel_config
    with set_current_vllm_config(config):
        join_groups(parallel, stage)
    if not is_workspace_manager_initialized():
        init_workspace_manager(torch.device("meta"))
    with set_current_vllm_config(config), torch.device("meta"), OnMeta():
        Kernels.models_are_loaded = False
        get_model_cls(config.model_config)
        Kernels.models_are_loaded = True
        torch.set_default_dtype(torch.bfloat16)
        initialize_model(config)
        target = set(get_layers_from_vllm_config(config, AttentionLayerBase))
        drafter = config.speculative_config
        if drafter is not None and stage == parallel.pipeline_parallel_size - 1:
            initialize_model(drafter.apply_draft_overrides(config), model_config=drafter.draft_model_config)
        torch.set_default_dtype(torch.float32)
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    for name in set(layers) - target:
        layers[name].is_draft_layer = True
    return layers


def stage_of(case, stage):
    """A worker's part of vLLM's start: its configuration, specs and backends."""
    config = engine_config(case)
    layers = build(config, stage)
    GPU.update_block_size_for_backend(config)
    config.validate_block_size()
    backends = {layer.get_attn_backend() for layer in layers.values()}
    with set_current_vllm_config(config):
        return config, get_kv_cache_spec(config), backends


def lay_out(case):
    """The steps of vLLM's EngineCore and workers, from the model to the groups."""
    stages = range(case["options"].get("pipeline_parallel_size", 1))
    configs, specs, backends = zip(*(stage_of(case, stage) for stage in stages), strict=True)
    config, backends = configs[0], set().union(*backends)
    with set_current_vllm_config(config):
        names = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
        layout = resolve_kv_cache_layout(config, [names], [spec for part in specs for spec in part.values()])
        groups = get_global_kv_cache_groups(config, list(specs))
    scheduler, hashed = resolve_kv_cache_block_sizes(types.SimpleNamespace(kv_cache_groups=groups), config)
    states = [one for g in groups for one in iter_layer_specs(g.kv_cache_spec) if isinstance(one, MambaSpec)]
    saved = {(one.num_prefill_checkpoint_blocks, one.prefill_checkpoint_alignment or 0) for one in states}
    dcp = config.parallel_config.decode_context_parallel_size
    longest = max_memory_usage_bytes(config, [spec for part in specs for spec in part.values()])  # it refuses some, too
    parts = [_project_kv_cache_groups_to_worker(groups, part) for part in specs]
    return {
        "groups": [group(one) for one in groups],
        "spans": [resolve_dcp_kv_block_size(one.kv_cache_spec, dcp) for one in groups],
        "drafters": [int(one.is_eagle_group) for one in groups],
        "block_bytes": max(_pool_bytes_per_block(config, part) for part in parts),
        "scheduler_block_size": scheduler, "hash_block_size": hashed, "dimensions": layout.name,
        "backends": sorted(backend.get_name() for backend in backends), "checkpoints": sorted(saved),
        "caching": [config.cache_config.enable_prefix_caching, config.cache_config.prefix_cache_retention_interval],
        "layers": [counted(part) for part in specs], "longest_bytes": longest,
    }  # fmt: skip


def counted(specs):
    """The layers of a stage by what they keep: [kind, layers, bytes of a page, block_size]."""
    kinds = [(kind_of(spec), spec.page_size_bytes, spec.block_size) for spec in specs.values()]
    return [[kind, kinds.count((kind, *page)), *page] for kind, *page in dict.fromkeys(kinds)]


def answer(case):
    try:
        return lay_out(case)
    except Exception as error:  # what vLLM refuses has no common class
        if os.environ.get("TRACE"):
            raise
        torch.set_default_dtype(torch.float32)
        return {"refused": type(error).__name__, "reason": str(error)[:300]}


if __name__ == "__main__":
    with open(sys.argv[1]) as lines:
        for line in lines:
            print(json.dumps({"version": __version__} | answer(json.loads(line))), flush=True)
