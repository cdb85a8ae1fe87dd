"""A deployment: which engine serves a model, on which GPUs, how it is divided over them, and in which precision.

All that depends on it reads this value: room for KV, blocks and cache groups, hits, the time of a step, the plan. The
fields have vLLM's names; SGLang's name of a field, where it has another one, is in `SGLANG_NAMES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .._base.errors import UsageError
from .._base.options import option

if TYPE_CHECKING:
    from pathlib import Path

    from ..cache.engines import EngineName

DEPLOYED = "Deployment"  # a group of --help
METHODS = ("mtp", "eagle", "eagle3")  # of speculative decoding; all lose the last block of a hit


@dataclass(frozen=True)
class Drafter:
    """What predicts further tokens: layers of the model itself (mtp), or a small model (eagle, eagle3).

    >>> Drafter.parse("mtp:3")
    Drafter(method='mtp', tokens=3, model=None)
    """

    method: str  # one of METHODS
    tokens: int = 1  # that it predicts in a step
    model: str | None = None  # a name or the config.json of an EAGLE head

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"{self.method!r} is not a method of --speculative. Try {', '.join(METHODS)}.")
        if type(self.tokens) is not int or not 1 <= self.tokens <= 64:
            raise UsageError("--speculative predicts 1 to 64 tokens. Example: mtp:3.")

    @classmethod
    def parse(cls, text: str) -> Drafter:
        """Parse METHOD, METHOD:TOKENS or METHOD:TOKENS:MODEL; UsageError for anything else."""
        method, _, rest = text.partition(":")
        tokens, _, model = rest.partition(":")
        if tokens and not tokens.isdecimal():
            raise UsageError(f"{text!r} is not METHOD:TOKENS:MODEL. Example: mtp:3.")
        return cls(method.lower(), int(tokens or 1), model or None)

    def __str__(self) -> str:
        return f"{self.method}:{self.tokens}" + (f":{self.model}" if self.model else "")


@dataclass(frozen=True)
class Deployment:
    """One copy of a model in an engine, with its data-parallel ranks; None is the engine's default or not known.

    >>> Deployment("llama-3.1-8b", tensor_parallel_size=2).gpus_per_rank
    2
    """

    model: str | Path | Mapping[str, Any] | None = None  # a name, the path of a config.json, or its fields
    engine: EngineName = "vllm"
    engine_version: str | None = option(
        None,
        "Version of the engine, which decides what it reserves and logs.  [default: the one that is modelled]",
        metavar="V",
        group=DEPLOYED,
    )
    gpu: str | None = None  # a name of GPUS, or the path of a JSON file
    tensor_parallel_size: int = option(
        1, "GPUs that share each layer.", name="tensor-parallel-size", metavar="N", minimum=1, group=DEPLOYED
    )
    pipeline_parallel_size: int = option(
        1, "Groups of GPUs that have a part of the layers each.", metavar="N", minimum=1, group=DEPLOYED
    )
    data_parallel_size: int = option(
        1,
        "Copies of the model behind the engine's own balancer, each with a cache of its own.",
        metavar="N",
        minimum=1,
        group=DEPLOYED,
    )
    enable_expert_parallel: bool = option(
        False, "Each GPU holds whole experts, instead of a part of each.", group=DEPLOYED
    )
    decode_context_parallel_size: int = option(
        1,
        "GPUs of a tensor-parallel group that share the tokens of a context in decoding.",
        metavar="N",
        minimum=1,
        group=DEPLOYED,
    )
    prefill_context_parallel_size: int = option(
        1, "GPUs that share the tokens of a prompt.", metavar="N", minimum=1, group=DEPLOYED
    )
    weights_dtype: str | None = option(
        None, "Dtype of the weights, in place of that of the config.json.", metavar="D", group=DEPLOYED
    )
    kv_cache_dtype: str = option(
        "auto", "Dtype of keys and values: auto is that of the model.", metavar="D", group=DEPLOYED
    )
    block_size: int | None = None  # tokens, asked of the engine
    speculative: Drafter | None = option(
        None,
        "Drafter: mtp, eagle or eagle3, with the tokens that it predicts and its model. Example: mtp:3.",
        metavar="METHOD[:N[:MODEL]]",
        group=DEPLOYED,
        parse=Drafter.parse,
    )
    gpu_memory_utilization: float | None = option(
        None,
        "Share of the memory of a GPU that the engine uses; with sglang --mem-fraction-static.  [default: 0.9]",
        metavar="X",
        group=DEPLOYED,
    )
    kv_cache_memory_bytes: int | None = None  # of each GPU, in place of what is left
    max_model_len: int | None = option(
        None, "Longest context.  [default: the model's]", metavar="N", minimum=1, group=DEPLOYED
    )
    max_num_batched_tokens: int | None = None  # of a step
    max_num_seqs: int | None = None  # requests at once
    enforce_eager: bool = False  # without CUDA graphs
    retention_interval: int | None = 0  # vLLM's prefix_cache_retention_interval; None = all checkpoints
    hybrid: bool = True  # False: vLLM's disable_hybrid_kv_cache_manager
    balancer: str | None = None  # of the data-parallel ranks; None = the engine's default

    @property
    def gpus_per_rank(self) -> int:
        """The GPUs of one data-parallel rank."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.gpus_per_rank * self.data_parallel_size

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not at their default, as JSON."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        stated = {part.name: values[part.name] for part in fields(self) if values[part.name] != part.default}
        return {name: value if isinstance(value, (int, float, str)) else str(value) for name, value in stated.items()}
