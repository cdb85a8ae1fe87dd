"""vLLM: its own planner lays out models; run in vLLM's environment as CASES (a file with a JSON object a line).

A case says layers (a letter each, in the model's order), kinds (a letter: [kind, token_bytes, window, state_bytes]),
block_size (null = the default), hybrid, alignment (tokens between the checkpoints that the kernel of the states can
save; null = none) and retention_interval; `state` (optional) is a function of vLLM's MambaStateShapeCalculator, its
arguments and the types of its results. Prints, a case a line, vLLM's version, its groups ([kind, layers, block_size,
window]), the bytes of a block, the scheduler's and the hash block size, the grid of the checkpoints and the bytes of
`state`, or the kind of exception that vLLM raises.

Planner, alignment of blocks, specs and coordinator are vLLM's, unmodified; the configs and the layers of states are
stand-ins with the values of a default server. The block sizes of attention are those of FLASH_ATTN; FLASH_ATTN_MLA, the
default for latent layers on an H100, has the same.
"""

import json
import sys
from types import SimpleNamespace
from unittest import mock

import torch
import vllm_scheduler  # noqa: F401 - before vLLM: it stands in for packages that vLLM imports and this does not use
from vllm import __version__
from vllm.config.cache import CacheConfig
from vllm.model_executor.layers.mamba.abstract import MambaBase, get_mamba_prefill_checkpoint_grid
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.platforms.interface import Platform
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_planning import _pool_bytes_per_block, get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.request import Request

KINDS = {
    MLAAttentionSpec: "full", FullAttentionSpec: "full", SlidingWindowSpec: "window",
    ChunkedLocalAttentionSpec: "chunk", MambaSpec: "state",
}  # fmt: skip


class StateModel:
    """The two questions that vLLM asks a model of states, for the largest state."""

    state_bytes = 0

    @classmethod
    def get_mamba_state_shape_from_config(cls, config):
        return ((cls.state_bytes,),)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, config):
        return (torch.uint8,)


class StateLayer(MambaBase):
    """A layer of states whose kernel saves checkpoints at multiples of `alignment` tokens."""

    def __init__(self, alignment):
        self.alignment = alignment

    def get_prefill_checkpoint_alignment(self):
        return self.alignment


StateLayer.__abstractmethods__ = frozenset()


class H100(Platform):
    """vLLM's platform, with the backends of the model's attention."""

    backends = ()

    @classmethod
    def _find_non_ssm_backends(cls, config):
        return list(cls.backends)


def server(case):
    """What the planner reads of a VllmConfig."""
    attention = [layer for layer in case["layers"] if layer[0] != "state"]
    states = [layer for layer in case["layers"] if layer[0] == "state"]
    order = ["latent", "full", "window", "chunk"]  # the config of a model with latents has their size
    first = min(attention, key=lambda layer: order.index(layer[0])) if attention else None
    cache = CacheConfig(
        enable_prefix_caching=True, **({"block_size": case["block_size"]} if case["block_size"] else {})
    )
    cache.kv_cache_layout = KVCacheLayout.LBNHC.name
    if states:
        cache.mamba_cache_mode, cache.mamba_block_size = "align", cache.block_size
    heads = {"get_num_kv_heads": lambda parallel: 1, "get_head_size": lambda: width(first)} if first else {}
    model = SimpleNamespace(
        dtype=torch.uint8, use_mla=any(layer[0] == "latent" for layer in attention), architecture="stand-in",
        is_hybrid=bool(states and attention), max_model_len=1 << 20, supports_kv_cache_grouping=False, **heads,
    )  # fmt: skip
    return SimpleNamespace(
        cache_config=cache, model_config=model, kv_transfer_config=None, speculative_config=None,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=not case["hybrid"]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1),
        attention_config=SimpleNamespace(hisparse_config=None), num_speculative_tokens=0,
        compilation_config=SimpleNamespace(
            static_forward_context={"state": StateLayer(case["alignment"])} if states else {}
        ),
    )  # fmt: skip


def width(layer):
    """The head size, in bytes, of a layer with one head: keys and values are two, a latent is one."""
    return layer[1] if layer[0] == "latent" else layer[1] // 2


def align(config, case):
    """vLLM's Platform.update_block_size_for_backend, with the bytes of the model's largest state."""
    StateModel.state_bytes = max(layer[3] for layer in case["layers"])
    H100.backends = (FlashAttentionBackend,) if any(layer[0] != "state" for layer in case["layers"]) else ()
    with (
        mock.patch("vllm.model_executor.models.ModelRegistry.resolve_model_cls", lambda *a, **k: (StateModel, None)),
        mock.patch("vllm.config.vllm.set_current_vllm_config"),
    ):
        if case["block_size"] and not all(one.supports_block_size(case["block_size"]) for one in H100.backends):
            raise ValueError("block_size not supported")  # as AttentionBackend.validate_configuration says
        H100.update_block_size_for_backend(config)


def spec(layer, cache):
    """As get_kv_cache_spec of vLLM's Attention, MLAAttention, ChunkedLocalAttention and MambaBase make it."""
    kind, _, window, state_bytes = layer
    if kind == "state":
        return MambaSpec(
            block_size=cache.mamba_block_size, shapes=((state_bytes,),), dtypes=(torch.uint8,),
            page_size_padded=cache.mamba_page_size_padded, mamba_cache_mode=cache.mamba_cache_mode,
        )  # fmt: skip
    common = {"block_size": cache.block_size, "num_kv_heads": 1, "head_size": width(layer), "dtype": torch.uint8}
    if kind == "window":
        return SlidingWindowSpec(sliding_window=window, **common)
    if kind == "chunk":
        return ChunkedLocalAttentionSpec(attention_chunk_size=window, **common)
    return (MLAAttentionSpec if kind == "latent" else FullAttentionSpec)(**common)


def kind_of(spec):
    """A spec's kind, also where a subclass describes it."""
    return next(KINDS[kind] for kind in type(spec).__mro__ if kind in KINDS)


def group(one):
    """A group as [kind, layers, block_size, window]."""
    inner = one.kv_cache_spec
    if isinstance(inner, UniformTypeKVCacheSpecs):
        inner = inner.first_spec
    kind = kind_of(inner)
    window = {"window": "sliding_window", "chunk": "attention_chunk_size"}.get(kind)
    return [kind, len(one.layer_names), one.kv_cache_spec.block_size, getattr(inner, window) if window else 0]


def first_lookup(config, kv_config, scheduler, hashed, interval):
    """vLLM's own coordinator starts and looks up a prompt."""
    kv_config.prefix_cache_retention_interval = interval
    manager = KVCacheManager(
        generate_scheduler_kv_cache_config([kv_config]), max_model_len=1 << 40, scheduler_block_size=scheduler,
        hash_block_size=hashed, max_in_flight_tokens=8192,
    )  # fmt: skip
    hasher = get_request_block_hasher(hashed, sha256)
    tokens = list(range(2 * scheduler + 1)) if scheduler < 100_000 else [0]
    manager.get_computed_blocks(Request("0", tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher))


def lay_out(case):
    config = server(case)
    align(config, case)
    specs = {f"layers.{number}": spec(layer, config.cache_config) for number, layer in enumerate(case["layers"])}
    groups = get_kv_cache_groups(config, specs)
    bytes_per_block = _pool_bytes_per_block(config, groups)
    kv_config = get_kv_cache_config_from_groups(config, groups, 8 * bytes_per_block)
    scheduler, hashed = resolve_kv_cache_block_sizes(kv_config, config)
    first_lookup(config, kv_config, scheduler, hashed, case["retention_interval"])
    states = any(layer[0] == "state" for layer in case["layers"])
    return {
        "grid": get_mamba_prefill_checkpoint_grid(config) if states and case["alignment"] else None,
        "state_bytes": state_bytes(case["state"]) if case.get("state") else None,
        "groups": [group(one) for one in groups], "block_bytes": bytes_per_block, "num_blocks": kv_config.num_blocks,
        "scheduler_block_size": scheduler, "hash_block_size": hashed,
    }  # fmt: skip


def state_bytes(state):
    """A layer's state in bytes: its shapes are vLLM's."""
    function, arguments, types = state
    shapes = getattr(MambaStateShapeCalculator, function)(**arguments)
    return MambaSpec(block_size=1, shapes=shapes, dtypes=tuple(getattr(torch, name) for name in types)).page_size_bytes


def answer(case):
    try:
        return lay_out(case)
    except (ValueError, AssertionError, NotImplementedError) as error:
        return {"refused": type(error).__name__, "reason": str(error)[:200]}


if __name__ == "__main__":
    init_none_hash(sha256)
    with open(sys.argv[1]) as file:
        for line in file:
            case = json.loads(line)
            case["layers"] = [case["kinds"][letter] for letter in case["layers"]]
            print(json.dumps({"version": __version__} | answer(case)), flush=True)
