"""The settings of an engine that was measured: its deployment, and what is not simulated as it was.

vLLM's are those of meta.json: `engine_kwargs`, which were given, and `resolved_config`, where it is there. SGLang's are
what its server answers to /server_info.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..._base.errors import InputError
from ...cache.engines import EngineName
from ...cache.layout import Drafting
from ..deployment import SGLANG_METHODS, Deployment, Drafter, vllm_method
from ..routers import in_lockstep, ranks_of
from ..run_options import TimeSetup

Described = Mapping[str, Any]


@dataclass(frozen=True)
class EngineSettings:
    """The deployment of the engine that was measured; None where the recording does not state a value."""

    deployment: Deployment = field(default_factory=Deployment)
    blocks: int | None = None  # of the KV cache of each data-parallel rank; the deployment has their size
    scheduler: Described = field(default_factory=dict)  # options of the engine's own scheduler, by its names
    prefix_caching: bool = True
    api_server_count: int | None = None  # of vLLM, which balance each by itself; None = one for each rank
    has_experts: bool = False  # the recording says so
    not_simulated: tuple[str, ...] = ()  # sentences: settings that change the times and are not simulated

    def blocks_of(self, size: int) -> int | None:
        """The blocks of `size` tokens that the KV cache of a rank holds, if the recording states it.

        >>> EngineSettings(Deployment(block_size=16), blocks=64).blocks_of(512)
        2
        """
        if self.blocks is None or self.deployment.block_size in (None, size):
            return self.blocks
        return max(1, self.blocks * self.deployment.block_size // size)

    def ranks(self, engine: EngineName, *, has_experts: bool = False) -> dict[str, Any]:
        """The options of a simulation in time for the data-parallel ranks of this deployment, or of another engine's.

        Args:
            engine: That is simulated.
            has_experts: The cost of a step has experts, whatever the recording says.

        Raises:
            UsageError: The balancer of the ranks is not simulated.

        >>> EngineSettings(Deployment(data_parallel_size=2)).ranks("vllm")["router"]
        'vllm-dp'
        """
        deployment = self.deployment
        if engine != deployment.engine:
            deployment = replace(deployment, engine=engine, balancer=None)
        instances, router = ranks_of(deployment)
        servers = self.api_server_count if router == "vllm-dp" else None
        lockstep = in_lockstep(deployment, has_experts=has_experts or self.has_experts)
        options = {"instances": instances, "router": router, "api_server_count": servers, "lockstep": lockstep}
        return options if instances > 1 else {}

    def drafting(self, engine: EngineName) -> Drafting | None:
        """What the drafter of this deployment changes in the cache of an engine; None without one.

        >>> EngineSettings(Deployment("deepseek-v3", speculative=Drafter("mtp"))).drafting("sglang").rule
        'bigram'
        """
        from ..models.config import model_name

        known = self.deployment if model_name(self.deployment.model) else replace(self.deployment, model=None)
        return (TimeSetup(deployment=known).drafting([engine]) or {}).get(engine)

    def contradictions(self, *, engine: EngineName | None = None) -> Iterator[str]:
        """A sentence for an option of a command that contradicts the recording.

        >>> [*EngineSettings().contradictions(engine="sglang")]
        ['--engine sglang: the recorded engine is vllm. Leave out --engine.']
        """
        if engine is not None and engine != self.deployment.engine:
            yield f"--engine {engine}: the recorded engine is {self.deployment.engine}. Leave out --engine."


LIMITS = ("block_size", "max_num_batched_tokens", "max_num_seqs")
PARALLEL = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
    "prefill_context_parallel_size",
)  # fmt: skip
OPTIONS = {  # of vLLM's scheduler, which have these types
    "async_scheduling": bool, "policy": str, "long_prefill_token_threshold": int, "scheduler_reserve_full_isl": bool,
}  # fmt: skip


def vllm_settings(meta: Described, path: str | Path = "meta.json") -> EngineSettings:
    """The settings in the meta.json of a recording of vLLM: its resolved configuration, else its arguments.

    Raises:
        InputError: A size is not a whole number from 1 on.

    >>> vllm_settings({"model": "m", "engine_kwargs": {"max_num_seqs": 128}}).deployment.max_num_seqs
    128
    """
    given = _vllm_values(meta)
    sizes: dict[str, Any] = {name: whole_setting(given, name, path) for name in (*LIMITS, *PARALLEL, "num_gpu_blocks")}
    parallel: dict[str, Any] = {name: sizes[name] or 1 for name in PARALLEL}
    ranks = parallel["data_parallel_size"]
    external = next((name for name in ("external_lb", "hybrid_lb") if given.get(f"data_parallel_{name}")), None)
    deployment = Deployment(
        _text_of(meta.get("model")) or _text_of(given.get("model")), "vllm",
        engine_version=_text_of(given.get("vllm_version")),
        **parallel, **{name: sizes[name] for name in LIMITS},
        enable_expert_parallel=given.get("enable_expert_parallel") is True,
        weights_dtype="fp8" if given.get("quantization") == "fp8" else None,
        kv_cache_dtype=_text_of(given.get("cache_dtype")) or _text_of(given.get("kv_cache_dtype")) or "auto",
        speculative=_vllm_drafter(given.get("speculative_config")),
        gpu_memory_utilization=_share_of(given.get("gpu_memory_utilization")),
        kv_cache_memory_bytes=_count_of(given.get("kv_cache_memory_bytes")),
        max_model_len=_count_of(given.get("max_model_len")), enforce_eager=given.get("enforce_eager") is True,
        hybrid=given.get("disable_hybrid_kv_cache_manager") is not True, balancer=external if ranks > 1 else None,
    )  # fmt: skip
    blocks = sizes["num_gpu_blocks"]  # vLLM's front end adds those of all ranks
    return EngineSettings(
        deployment, max(1, blocks // ranks) if blocks else None,
        {name: given[name] for name, kind in OPTIONS.items() if isinstance(given.get(name), kind)},
        given.get("enable_prefix_caching") is not False, 1,
        any(given.get(name) is True for name in ("enable_expert_parallel", "is_moe_model")),
        tuple(_vllm_not_simulated(given, deployment)),
    )  # fmt: skip


def _vllm_values(meta: Described) -> dict[str, Any]:
    """Name -> value; of a name that stands in several parts, the last one that is not null."""
    resolved = part(meta, "resolved_config")
    parts = [meta, part(meta, "engine_kwargs"), part(meta, "kv_cache"), resolved]
    parts += [part(resolved, f"{name}_config") for name in ("model", "parallel", "scheduler", "cache")]
    return {name: value for values in parts for name, value in values.items() if value is not None}


def _vllm_drafter(config: Any) -> Drafter | None:
    """The drafter of a speculative_config, if kvtrace models its method."""
    name = config.get("method") if isinstance(config, dict) else None
    method = vllm_method(name) if isinstance(name, str) else None
    if method is None:
        return None
    tokens = config.get("num_speculative_tokens")
    return Drafter(method, tokens if type(tokens) is int else 1)


def _vllm_not_simulated(given: Described, deployment: Deployment) -> Iterator[str]:
    """A sentence for each setting of vLLM that changes the times and is not simulated."""
    yield from _parallel_not_simulated(deployment)
    if given.get("speculative_config"):
        yield SPECULATIVE.format(name="speculative_config")
    if given.get("enable_chunked_prefill") is False:
        yield "enable_chunked_prefill is off: the simulated engine divides prompts that are longer than a step."
    if given.get("lora_config") or given.get("enable_lora") is True:
        yield "enable_lora: the time of adapters is not simulated, and their cached blocks are not kept apart."
    if given.get("is_multimodal_model") is True or given.get("multimodal_config"):
        yield "multimodal_config: the time of encoders is not simulated."
    if given.get("kv_transfer_config") or given.get("kv_offloading_size"):
        yield "kv_transfer_config: the simulated engine moves no KV cache, neither to other engines nor to lower tiers."
    if deployment.enforce_eager:
        yield EAGER.format(name="enforce_eager")


SPECULATIVE = "{name}: a step of the simulated engine gives one token to a request, without a drafter."
EAGER = "{name}: the costs of --gpu are those of an engine with CUDA graphs."
SGLANG_SIZES = (
    "tp_size", "dp_size", "attn_dp_size", "pp_size", "ep_size", "page_size", "chunked_prefill_size",
    "max_running_requests", "max_total_num_tokens", "speculative_num_draft_tokens",
)  # fmt: skip
SGLANG_OPTIONS = {  # of its scheduler, which have these types
    "schedule_policy": str, "schedule_conservativeness": float, "max_prefill_tokens": int, "page_size": int,
    "disable_overlap_schedule": bool, "enable_mixed_chunk": bool, "scheduler_recv_interval": int,
}  # fmt: skip


def sglang_settings(server: Described, path: str | Path = "server_info") -> EngineSettings:
    """The settings that a server of SGLang states of itself.

    With data-parallel attention, its `tp_size` GPUs are those of all ranks, and share its `max_running_requests`. The
    ranks are `attn_dp_size` since 0.5.23, and `dp_size` before.

    Raises:
        InputError: A size is not a whole number from 1 on.

    >>> server = {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True, "max_running_requests": 64}
    >>> deployment = sglang_settings(server).deployment
    >>> deployment.tensor_parallel_size, deployment.data_parallel_size, deployment.max_num_seqs
    (2, 4, 16)
    """
    values = {name: value for name, value in server.items() if value != -1}  # -1: prompts are not divided
    sizes = {name: whole_setting(values, name, path) for name in SGLANG_SIZES}
    ranks, attention = sizes["dp_size"] or 1, sizes["attn_dp_size"] or 1
    if attention == 1 and server.get("enable_dp_attention") is True:
        attention = ranks
    ranks, sharing = max(ranks, attention), attention
    page, seats, tokens = (sizes[name] for name in ("page_size", "max_running_requests", "max_total_num_tokens"))
    method = SGLANG_METHODS.get(str(server.get("speculative_algorithm")).lower())
    balancer = _text_of(server.get("load_balance_method"))
    deployment = Deployment(
        _text_of(server.get("model_path")), "sglang", engine_version=_text_of(server.get("version")),
        tensor_parallel_size=max(1, (sizes["tp_size"] or 1) // sharing),
        pipeline_parallel_size=sizes["pp_size"] or 1, data_parallel_size=ranks,
        enable_expert_parallel=(sizes["ep_size"] or 1) > 1,
        weights_dtype="fp8" if server.get("quantization") == "fp8" else None,
        kv_cache_dtype=_text_of(server.get("kv_cache_dtype")) or "auto",
        speculative=Drafter(method, sizes["speculative_num_draft_tokens"] or 1) if method else None,
        gpu_memory_utilization=_share_of(server.get("mem_fraction_static")),
        enforce_eager=server.get("disable_cuda_graph") is True, balancer=balancer if ranks > 1 else None,
        enable_dp_attention=sharing > 1, block_size=page, max_num_seqs=max(1, seats // sharing) if seats else None,
        max_model_len=_count_of(server.get("context_length")), max_num_batched_tokens=sizes["chunked_prefill_size"],
    )  # fmt: skip
    return EngineSettings(
        deployment, max(1, tokens // page) if tokens and page else None,
        {name: server[name] for name, kind in SGLANG_OPTIONS.items() if isinstance(server.get(name), kind)},
        server.get("disable_radix_cache") is not True, None, False, tuple(_sglang_not_simulated(server, deployment)),
    )  # fmt: skip


def _sglang_not_simulated(server: Described, deployment: Deployment) -> Iterator[str]:
    """A sentence for each setting of SGLang that changes the times and is not simulated."""
    yield from _parallel_not_simulated(deployment)
    if server.get("speculative_algorithm"):
        yield SPECULATIVE.format(name="speculative_algorithm")
    if server.get("lora_paths") or server.get("enable_lora") is True:
        yield "enable_lora: the time of adapters is not simulated, and their cached blocks are not kept apart."
    if server.get("disaggregation_mode") in ("prefill", "decode"):
        yield "disaggregation_mode: the simulated engine has prefill and decode in one."
    if server.get("enable_hierarchical_cache") is True:
        yield "enable_hierarchical_cache: the simulated engine has no lower tiers."
    if deployment.enforce_eager:
        yield EAGER.format(name="disable_cuda_graph")


def _parallel_not_simulated(deployment: Deployment) -> Iterator[str]:
    """A sentence for each kind of parallelism that the simulated times leave out."""
    if deployment.pipeline_parallel_size > 1:
        yield "pipeline_parallel_size: the simulated steps do not overlap in stages."
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(deployment, name) > 1:
            yield f"{name}: the simulated GPUs do not share the tokens of a context."


def part(described: Described, name: str) -> Described:
    """An object inside another one; empty if it is missing."""
    part = described.get(name)
    return part if isinstance(part, dict) else {}


def _text_of(value: Any) -> str | None:
    """A text; None for anything else."""
    return value if isinstance(value, str) and value else None


def _count_of(value: Any) -> int | None:
    """A whole number from 1 on; None for anything else, as -1 for what the engine chooses."""
    return value if type(value) is int and value >= 1 else None


def _share_of(value: Any) -> float | None:
    """A share above 0, up to 1; None for anything else."""
    return float(value) if type(value) in (int, float) and 0 < value <= 1 else None


def whole_setting(described: Described, name: str, path: str | Path) -> int | None:
    """A setting of an engine, a whole number from 1 on; None if it is missing.

    >>> whole_setting({"max_num_seqs": 128}, "max_num_seqs", "meta.json")
    128
    """
    value = described.get(name)
    if value is not None and (type(value) is not int or not 1 <= value < 1 << 31):
        raise InputError(f"{path}: {name} is not a whole number from 1 on.")
    return value
