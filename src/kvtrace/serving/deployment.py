"""A deployment: which engine serves a model, on which GPUs, how it is divided over them, and in which precision.

All that depends on it reads this value: room for KV, blocks and cache groups, hits, the time of a step, the plan. The
fields have vLLM's names; `serve_command.py` has SGLang's, and reads the command that starts a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.errors import UsageError, wrong_word
from .._base.options import option

if TYPE_CHECKING:
    from ..cache.engines import EngineName
    from .hardware.gpus import Gpu

DEPLOYED, TIME = "Deployment", "Instances and time"  # groups of --help
METHODS = ("mtp", "eagle", "eagle3")  # of speculative decoding
SGLANG_METHODS = {"nextn": "mtp", "eagle": "eagle", "eagle3": "eagle3"}  # SGLang's algorithm, in small letters -> ours
MEMORY = (  # fields that decide what memory holds, beside the model, the GPU and the limits of a step
    "engine", "tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size",
    "decode_context_parallel_size", "enable_expert_parallel", "weights_dtype", "kv_cache_dtype", "speculative",
    "gpu_memory_utilization", "kv_cache_memory_bytes", "enforce_eager",
)  # fmt: skip
ALL2ALL = ("deepep",)
MODELLED = ("vllm", "sglang")  # engines whose memory is modelled


NOT_IN_TIMES = "simulated times do not model"  # begins each sentence of `not_in_times`


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
            raise wrong_word(self.method, "a method of --speculative", METHODS)
        if type(self.tokens) is not int or not 1 <= self.tokens <= 64:
            raise UsageError("--speculative predicts 1 to 64 tokens. Example: mtp:3.")

    @classmethod
    def parse(cls, text: str) -> Drafter:
        """Parse METHOD, METHOD:TOKENS or METHOD:TOKENS:MODEL; UsageError for anything else."""
        method, _, rest = text.partition(":")
        tokens, _, model = rest.partition(":")
        if tokens and not (tokens.isdecimal() and len(tokens) < 4):
            raise UsageError(f"{text!r} is not METHOD:TOKENS:MODEL. Example: mtp:3.")
        return cls(method.lower(), int(tokens or 1), model or None)

    def __str__(self) -> str:
        return f"{self.method}:{self.tokens}" + (f":{self.model}" if self.model else "")


def vllm_method(name: str) -> str | None:
    """The one of `METHODS` that vLLM's `method` names, if any; vLLM also names a model's own layers by the model."""
    method = "mtp" if name.endswith("mtp") else name
    return method if method in METHODS else None


def _size(default: Any, help: str, **how: Any) -> Any:
    """A field that is an option of the group of deployments, by default a number from 1 on."""
    settings: dict[str, Any] = {"metavar": "N", "minimum": 1} | how
    return option(default, help, group=DEPLOYED, **settings)


@dataclass(frozen=True)
class Deployment:
    """A model in an engine on GPUs; None is the engine's default, or not known.

    >>> Deployment("llama-3.1-8b", gpu="h100", tensor_parallel_size=2).gpus_per_instance
    2
    """

    model: str | Path | Mapping[str, Any] | None = None  # a name, the path of a config.json, or its fields
    engine: EngineName = option(
        "vllm",
        "Engine whose scheduler and cache an instance has: {rows}. With more --tiers than it has: reference.  "
        "[default: vllm]",
        metavar="E", group="Cache",
    )  # fmt: skip
    gpu: str | Path | Gpu | None = option(
        None, "With --model: simulate serving in time on {rows}, or a JSON file; prints TTFT and TPOT.", metavar="G",
        group=TIME,
    )  # fmt: skip
    tensor_parallel_size: int = _size(1, "GPUs that share each layer.  [default: 1]", aliases=("--tp",))
    pipeline_parallel_size: int = _size(
        1, "Groups of GPUs that hold a part of the layers each.  [default: 1]", aliases=("--pp",)
    )
    data_parallel_size: int = _size(
        1, "Copies of the model behind the engine's own balancer, each with a cache of its own.  [default: 1]",
        aliases=("--dp",),
    )  # fmt: skip
    enable_expert_parallel: bool = _size(
        False, "Each GPU holds whole experts.  [default: a part of each]", metavar=None, minimum=None
    )
    all2all_backend: str | None = _size(
        None, "How ranks send tokens to experts: deepep, to the GPUs of their experts alone; SGLang's "
        "--moe-a2a-backend.  [default: each gathers the tokens of all]", metavar="B", minimum=None,
        aliases=("--moe-a2a-backend",), choices=ALL2ALL,
    )  # fmt: skip
    decode_context_parallel_size: int = _size(
        1, "GPUs of --tp that divide the tokens of a context among them.  [default: 1]", aliases=("--dcp",)
    )
    prefill_context_parallel_size: int = _size(
        1, "GPUs that divide the tokens of a prompt.  [default: 1]", aliases=("--pcp",)
    )
    weights_dtype: str | None = _size(
        None, "Dtype of the weights: bfloat16, fp8, int4, nvfp4, ...  [default: of the model]", metavar="D",
        minimum=None,
    )  # fmt: skip
    kv_cache_dtype: str = _size(
        "auto", "Dtype of keys and values, such as fp8.  [default: auto, that of the model]", metavar="D", minimum=None
    )
    speculative: Drafter | None = _size(
        None, "Drafter: mtp, eagle or eagle3, the tokens that it predicts, and its model. Example: mtp:3.",
        metavar="METHOD:N:M", minimum=None, parse=Drafter.parse,
    )  # fmt: skip
    gpu_memory_utilization: float | None = _size(
        None,
        "Share of a GPU's memory that the engine uses; SGLang's --mem-fraction-static.  [default: 0.9; sglang's rule]",
        metavar="X", minimum=None, aliases=("--mem-fraction-static",),
    )  # fmt: skip
    max_model_len: int | None = _size(None, "Longest context, in tokens.  [default: of the model]")
    engine_version: str | None = _size(
        None, "Version of the engine: what it reserves and logs depends on it.  [default: the one that is modelled]",
        metavar="V", minimum=None,
    )  # fmt: skip
    max_num_batched_tokens: int | None = option(
        None,
        "Largest number of tokens in a step: of an instance in time, or of a prompt for a --model with windows or "
        "states.  [default: the engine's, by GPU: 2048, 8192 or 16384; with --costs as measured]",
        metavar="N", minimum=1, group=TIME, aliases=("--step-tokens",),
    )  # fmt: skip
    max_num_seqs: int | None = option(
        None,
        "In time: largest number of requests that an instance serves at once.  "
        "[default: the engine's; with --costs as measured]",
        metavar="N", minimum=1, group=TIME, aliases=("--max-requests",),
    )  # fmt: skip
    block_size: int | None = None  # tokens, asked of the engine
    kv_cache_memory_bytes: int | None = None  # on each GPU, in place of what is left
    enforce_eager: bool = False  # no CUDA graphs
    retention_interval: int | None = 0  # vLLM's prefix_cache_retention_interval; None = all checkpoints
    hybrid: bool = True  # False: vLLM's disable_hybrid_kv_cache_manager
    balancer: str | None = None  # of the data-parallel ranks; None = the engine's default
    enable_dp_attention: bool = False  # SGLang's: its ranks share experts; its --tp-size is that of all ranks together
    not_modelled: tuple[str, ...] = ()  # options of its engine that kvtrace does not model

    def __post_init__(self) -> None:
        for part in fields(self):
            if part.name.endswith("_size") and part.default == 1:
                value = getattr(self, part.name)
                if type(value) is not int or not 1 <= value <= 1 << 16:
                    raise UsageError(f"--{part.name.replace('_', '-')} must be a whole number from 1 to 65,536.")
        share = self.gpu_memory_utilization
        if share is not None and not (isinstance(share, (int, float)) and 0 < share <= 1):
            raise UsageError("--gpu-memory-utilization must be above 0 and at most 1.")

    @property
    def gpus_per_instance(self) -> int:
        """The GPUs of one data-parallel rank, which is an instance with a cache of its own."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size

    @property
    def in_memory(self) -> Deployment:
        """The deployment in the engine whose rules its memory has: vLLM's, where those of its own are not modelled."""
        return self if self.engine in MODELLED else replace(self, engine="vllm")

    @property
    def model_name(self) -> str | None:
        """The name of the model, or of its file; "model config" if its fields are given."""
        if isinstance(self.model, Mapping):
            return "model config"
        if isinstance(self.model, Path) or (self.model is not None and Path(self.model).exists()):
            return Path(self.model).name
        return self.model

    @property
    def gpu_name(self) -> str | None:
        """The name of the GPU, or of its file."""
        return self.gpu if self.gpu is None or isinstance(self.gpu, str) else getattr(self.gpu, "name", str(self.gpu))

    def with_gpus(self, gpus: int | None) -> Deployment:
        """The deployment on so many GPUs per instance, by tensor parallelism unless that is stated.

        >>> Deployment(pipeline_parallel_size=2).with_gpus(8).tensor_parallel_size
        4
        """
        others = self.gpus_per_instance // self.tensor_parallel_size
        if gpus is None or gpus == self.gpus_per_instance:
            return self
        if self.tensor_parallel_size > 1 or gpus % others:
            raise UsageError(
                f"--gpus {gpus} contradicts --tensor-parallel-size {self.tensor_parallel_size} x "
                f"{others} of the other sizes. Leave out --gpus."
            )
        return replace(self, tensor_parallel_size=gpus // others)

    @property
    def warnings(self) -> list[str]:
        """What kvtrace does not model of its options: a sentence, if there are some."""
        names = ", ".join(self.not_modelled)
        return [f"not modelled: {names}. Memory, hits and times are those without."] if names else []

    @property
    def not_in_times(self) -> list[str]:
        """What simulated times leave out of this deployment, a sentence each."""
        return [f"{NOT_IN_TIMES} {what}" for holds, what in (
            (self.pipeline_parallel_size > 1, "pipeline stages: all GPUs share each layer"),
            (self.enable_expert_parallel, "expert parallelism: all GPUs get as many tokens for their experts"),
            (self.decode_context_parallel_size > 1, "the exchanges of decode context parallelism"),
            (self.prefill_context_parallel_size > 1, "prefill context parallelism: GPUs share each layer"),
            (self.speculative is not None, "speculative decoding: a step makes one token of a request"),
        ) if holds]  # fmt: skip

    def same_memory(self, other: Deployment) -> bool:
        """Whether another deployment divides the memory of the same GPUs alike, whatever its steps may hold."""
        from .hardware.gpus import gpu
        from .models.config import read_config

        if any(getattr(self, name) != getattr(other, name) for name in MEMORY) or None in (self.model, other.model):
            return False
        same_model = self.model == other.model or (
            read_config(self.served_model).values == read_config(other.served_model).values
        )
        return same_model and gpu(self.card) == gpu(other.card)

    @property
    def served_model(self) -> str | Path | Mapping[str, Any]:
        """The model; UsageError if there is none."""
        if self.model is None:
            raise UsageError("The deployment has no model. Give it with --model, or Deployment(model).")
        return self.model

    @property
    def card(self) -> str | Path | Gpu:
        """The GPU; UsageError if there is none."""
        if self.gpu is None:
            raise UsageError("The deployment has no GPU. Give it with --gpu, or Deployment(model, gpu=...).")
        return self.gpu

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Deployment:
        """The deployment of such a JSON object; UsageError or TypeError if it is not one.

        >>> drafted = Deployment("deepseek-v3", tensor_parallel_size=8, speculative=Drafter("mtp", 3))
        >>> Deployment.from_dict(drafted.to_dict()) == drafted
        True
        """
        drafter, others = values.get("speculative"), tuple(values.get("not_modelled", ()))
        drafted = Drafter.parse(drafter) if isinstance(drafter, str) else drafter
        return cls(**{**values, "speculative": drafted, "not_modelled": others})

    def to_dict(self) -> dict[str, Any]:
        """The engine, and all fields that are not at their default, as JSON."""
        stated: dict[str, Any] = {"engine": self.engine}
        for part in fields(self):
            value = getattr(self, part.name)
            if value != part.default:
                stated[part.name] = str(value) if isinstance(value, (Drafter, Path)) else value
        named = {"model": self.model_name, "gpu": self.gpu_name}
        return stated | {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        """One line: the model, the GPUs, and what is not at its default."""
        rest = {name: value for name, value in self.to_dict().items() if name not in ("model", "gpu", "engine")}
        parts = [f"{name} {value}" for name, value in rest.items()]
        where = f" on {self.gpus_per_instance} x {self.gpu_name}" if self.gpu is not None else ""
        return ", ".join([f"{self.model_name or 'a model'} in {self.engine}{where}", *parts])
