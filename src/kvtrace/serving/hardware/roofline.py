"""A roofline of serving: a step takes as long as the slower of its arithmetic and its memory traffic.

    seconds = max(seconds_per_token * new tokens + seconds_per_pair * (n**2 - p**2),
                  seconds_per_step + seconds_per_cached_token * KV tokens touched) + step_overhead_s

with p = tokens of a request that are cached, n = p + its new ones; the requests of a step add up. Shares of the
peaks stand for all that a real engine loses (docs/serving/serving-model.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._base.errors import UsageError
from .columns import columns, number
from .gpus import Gpu, gpu
from .models import ModelShape, model_shape

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Roofline:
    """A model on so many GPUs; the shares, the overhead and the reserve are assumptions, UsageError where one is none.

    >>> from kvtrace.serving.hardware import gpu, model_shape
    >>> llama = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...          "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    >>> roofline = Roofline(model_shape(llama), gpu("h100"))
    >>> seconds = roofline.prefill_s(new=[8192, 4096], cached=[0, 4096])
    >>> seconds.round(3).tolist(), roofline.kv_capacity_tokens
    ([0.304, 0.162], 426788)
    """

    model: ModelShape
    gpu: Gpu
    gpus: int = 1
    compute_share: float = 0.5  # of peak FLOP/s
    bandwidth_share: float = 0.8  # of peak bytes/s
    step_overhead_s: float = 0.002  # scheduling, launches, sampling
    reserve_share: float = 0.1  # of the GPUs' memory, for activations and the engine

    def __post_init__(self) -> None:
        if type(self.gpus) is not int or not 1 <= self.gpus <= 1_000_000:
            raise UsageError("gpus is no whole number from 1 to 1,000,000.")
        for name in ("compute_share", "bandwidth_share"):
            number(name, getattr(self, name), 1e-6, 1)
        number("step_overhead_s", self.step_overhead_s, 0, 3600)
        number("reserve_share", self.reserve_share, 0, 0.99)

    @property
    def seconds_per_token(self) -> float:
        """Of arithmetic: 2 FLOP for each active parameter."""
        return 2 * self.model.active_parameters / self._flops

    @property
    def seconds_per_pair(self) -> float:
        """Of arithmetic, for each of the n**2 - p**2 by which a request's context grows: half a causal pair's."""
        return self.model.flops_per_pair / self._flops

    @property
    def seconds_per_step(self) -> float:
        """Of memory traffic: the weights, read once whatever the batch."""
        return self.model.weight_bytes / self._bandwidth

    @property
    def seconds_per_cached_token(self) -> float:
        """Of memory traffic: one token's KV, read or written."""
        return self.model.kv_bytes_per_token / self._bandwidth

    def prefill_flops(self, new: ArrayLike, cached: ArrayLike = 0) -> Any:
        """FLOP that compute a prompt's new tokens after its cached ones; numbers or columns of them."""
        new, cached = columns(new=new, cached=cached)
        return 2.0 * self.model.active_parameters * new + self.model.flops_per_pair * _squares(new, cached)

    def prefill_s(self, new: ArrayLike, cached: ArrayLike = 0) -> Any:
        """Seconds of a step that computes one prompt and nothing else."""
        new, cached = columns(new=new, cached=cached)
        return self._step_s(new, _squares(new, cached), new + cached)

    def decode_step_s(self, batch: ArrayLike, kv_tokens: ArrayLike) -> Any:
        """Seconds of a step that makes one token for each request of a batch whose contexts hold `kv_tokens` together.

        A request whose context grows from p to p + 1 adds 2 * p + 1 squares and touches p + 1 tokens of KV.
        """
        batch, kv_tokens = columns(batch=batch, kv_tokens=kv_tokens)
        return self._step_s(batch, 2 * kv_tokens + batch, kv_tokens + batch)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV fits beside the weights and the reserve; UsageError where the weights alone do not fit."""
        usable = self.gpu.memory * (1 - self.reserve_share)
        left = usable * self.gpus - self.model.weight_bytes
        if left <= 0:
            needed = int(self.model.weight_bytes // usable) + 1
            raise UsageError(
                f"the weights take {self.model.weight_bytes / 1e9:,.0f} GB; {self.gpus} x {self.gpu.name} leave "
                f"{usable * self.gpus / 1e9:,.0f} GB for them. Try {needed} GPUs or more."
            )
        return int(left // self.model.kv_bytes_per_token)

    def compute_s(self, new: ArrayLike, cached: ArrayLike = 0) -> Any:
        """Seconds of arithmetic alone: what is saved where the new tokens need not be computed."""
        return self.prefill_flops(new, cached) / self._flops

    def fetch_pays(self, tokens: ArrayLike, bandwidth_bytes_per_s: ArrayLike, cached: ArrayLike = 0) -> Any:
        """True where fetching the KV of so many tokens, which follow `cached` ones, is faster than computing it.

        Computing takes `compute_s`: the step's fixed costs are paid either way, for the rest of the prompt.
        """
        tokens, bandwidth, cached = columns(tokens=tokens, bandwidth_bytes_per_s=bandwidth_bytes_per_s, cached=cached)
        if not (bandwidth > 0).all():
            raise UsageError("bandwidth_bytes_per_s is 0 somewhere. Give bytes a second above 0.")
        # compute time > bytes / bandwidth, multiplied out
        return self.compute_s(tokens, cached) * bandwidth > self.model.kv_bytes_per_token * tokens

    def break_even_bandwidth(self, tokens: ArrayLike, cached: ArrayLike = 0) -> Any:
        """Bytes a second above which fetching so many tokens' KV pays: bytes / `compute_s`, both by the token.

        It falls as contexts grow, since a later token attends to more; for no token at all it is that of the first.
        """
        tokens, cached = columns(tokens=tokens, cached=cached)
        seconds = self.seconds_per_token + self.seconds_per_pair * (2 * cached + tokens)
        return self.model.kv_bytes_per_token / seconds

    def usd(self, seconds: ArrayLike) -> Any:
        """What so many seconds of all the GPUs cost in USD."""
        (seconds,) = columns(seconds=seconds)
        return seconds * (self.gpus * self.gpu.price_per_hour / 3600)

    def _step_s(self, new, squares, kv_tokens):
        arithmetic = self.seconds_per_token * new + self.seconds_per_pair * squares
        traffic = self.seconds_per_step + self.seconds_per_cached_token * kv_tokens
        return np.maximum(arithmetic, traffic) + self.step_overhead_s

    @property
    def _flops(self):
        return self.gpu.flops * self.gpus * self.compute_share

    @property
    def _bandwidth(self):
        return self.gpu.bandwidth * self.gpus * self.bandwidth_share


def roofline_of(model_config: Any, gpu_name: Any, gpus: int = 1) -> Roofline | None:
    """The model on its GPUs where a command names them; None where it names no GPU, UsageError where no model.

    >>> roofline_of(None, None) is None
    True
    """
    if gpu_name is None:
        return None
    if model_config is None:
        raise UsageError("--gpu needs --model-config: times follow from both.")
    return Roofline(model_shape(model_config), gpu(gpu_name), gpus=gpus)


def _squares(new, cached):
    return new * (2 * cached + new)  # (cached + new)**2 - cached**2
