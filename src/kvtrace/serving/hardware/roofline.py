"""A roofline of serving: the time of a step is that of its products, of its attention, and what overlaps with neither.

    seconds = max(seconds_per_dense_token * new tokens, seconds_per_step)
            + max(seconds_per_expert_token * new tokens, seconds_for_experts * share of the experts that they use)
            + seconds_per_pair * (n**2 - p**2) + seconds_per_cached_token * KV tokens touched
            + all-reduces + head_s + step_overhead_s + seconds_per_request * requests

with p = cached tokens of a request and n = p + its new tokens; the requests of a step add up. The products overlap with
the reading of their weights; attention, the head and the all-reduces of tensor parallelism run in kernels of their own.
An all-reduce takes the faster of two ways: one for few tokens, one for many. Shares of the peaks are public
measurements, and what engines and kernels add is a fit to others (step_terms.py, docs/serving/models.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._base.errors import UsageError
from ..models.layers import growing_bytes, rank_layers
from ..models.shape import ModelShape, model_shape
from ..routers import in_lockstep
from .gpus import ACTIVATION_BYTES, ALL_REDUCES, DISPATCHED_BYTES, Gpu, Link, columns, gpu, number
from .step_terms import IDEAL, StepTerms, step_terms

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..deployment import Deployment


PLAIN_BYTES, NVFP4_BYTES = 2.0, 0.5625  # of a parameter; NVFP4 has a byte of scale for 16 values


@dataclass(frozen=True)
class Roofline:
    """A model on GPUs; shares and overhead are assumptions. UsageError if one of them is not valid.

    >>> from kvtrace.serving.hardware import gpu
    >>> from kvtrace.serving.models import model_shape
    >>> llama = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...          "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    >>> roofline = Roofline(model_shape(llama), gpu("h100"))
    >>> seconds = roofline.prefill_s(new=[8192, 4096], cached=[0, 4096])
    >>> seconds.round(3).tolist()
    [0.185, 0.099]
    """

    model: ModelShape
    gpu: Gpu
    gpus: int = 1
    compute_share: float | None = None  # of peak FLOP/s; None = the GPU's matmul_share
    bandwidth_share: float | None = None  # of peak bytes/s that weights and activations reach; None = the GPU's
    step_overhead_s: float | None = None  # scheduling, launches, sampling; None = that of the terms
    attention_bandwidth_share: float = 0.66  # of peak bytes/s that attention reaches when it reads cached KV
    link: Link | None = None  # between the GPUs; None = the GPU's
    terms: StepTerms = IDEAL  # what engine and kernels add; `roofline_of` has those of a deployment
    ranks: int = 1  # data-parallel ranks that share the experts
    routes: bool = False  # they send each token to the GPUs of its experts alone (DeepEP)

    def __post_init__(self) -> None:
        if type(self.gpus) is not int or not 1 <= self.gpus <= 1_000_000:
            raise UsageError("--gpus must be a whole number from 1 to 1,000,000.")
        for name in ("compute_share", "bandwidth_share", "attention_bandwidth_share"):
            if getattr(self, name) is not None or name == "attention_bandwidth_share":
                number(name, getattr(self, name), 1e-6, 1)
        if self.step_overhead_s is not None:
            number("step_overhead_s", self.step_overhead_s, 0, 3600)
        if self.link is not None and not isinstance(self.link, Link):
            raise UsageError("link must be a Link.")

    @property
    def reached_compute_share(self) -> float:
        """The share of peak FLOP/s that products reach: `compute_share`, or that of the GPU."""
        return self.gpu.matmul_share if self.compute_share is None else self.compute_share

    @property
    def reached_bandwidth_share(self) -> float:
        """The share of peak bytes/s that weights and activations reach: `bandwidth_share`, or that of the GPU."""
        return self.gpu.bandwidth_share if self.bandwidth_share is None else self.bandwidth_share

    @property
    def fixed_s(self) -> float:
        """What each step takes beside the work on its tokens: `step_overhead_s`, or that of the terms."""
        return self.terms.step_s if self.step_overhead_s is None else self.step_overhead_s

    @property
    def ideal(self) -> Roofline:
        """The same model on the GPUs of one instance, without the terms of an engine: as a costs.json has it."""
        return replace(self, terms=IDEAL, ranks=1)

    @property
    def seconds_per_token(self) -> float:
        """Time per token: 2 FLOP for each parameter of its layers, and the activations between the products."""
        return self.seconds_per_dense_token + self.seconds_per_expert_token

    @property
    def seconds_per_dense_token(self) -> float:
        """`seconds_per_token` without the products of the routed experts."""
        dense = self.model.matrix_parameters - self.model.expert_share * self.model.expert_parameters
        products = 2 * dense * self._seconds_per_flop(self.model.stored_bytes[0])
        return products + self.model.activation_bytes_per_token / self._bandwidth

    @property
    def seconds_per_expert_token(self) -> float:
        """The time per token of the products of its routed experts."""
        flop = 2 * self.model.expert_share * self.model.expert_parameters
        return flop * self._seconds_per_flop(self.model.stored_bytes[1]) * self.terms.expert_products

    @property
    def seconds_per_pair(self) -> float:
        """Compute time per unit of n**2 - p**2, as a request's context grows: half the time of a causal pair."""
        return self.model.flops_per_pair / self._flops

    @property
    def seconds_per_window_pair(self) -> float:
        """As `seconds_per_pair`, for the layers with windows: per unit of the model's `window_squares`."""
        return self.model.flops_per_window_pair / self._flops

    @property
    def seconds_per_window_token(self) -> float:
        """As `seconds_per_cached_token`, for the layers with windows."""
        return self.model.window_read_bytes_per_token / self._cache_bandwidth

    @property
    def seconds_per_request(self) -> float:
        """Time per request of a step: its states are read and written, and what the terms have."""
        return 2 * self.model.state_bytes / self._cache_bandwidth + self.terms.request_s

    @property
    def seconds_per_step(self) -> float:
        """Memory time per step: the layers, without routed experts, are read once for the whole batch."""
        return self.terms.dense_read * (self.model.matrix_bytes - self.model.expert_bytes) / self._bandwidth

    @property
    def seconds_for_experts(self) -> float:
        """Memory time of a step whose tokens use all routed experts."""
        return self.terms.expert_read * self.model.expert_bytes / self._bandwidth

    @property
    def reached_link(self) -> Link:
        """What connects the GPUs: `link`, or that of the GPU."""
        return self.gpu.link if self.link is None else self.link

    @property
    def exchange_s_per_token(self) -> float:
        """Time per token of the all-reduces, two a layer, by the way for few tokens; 0 on one GPU."""
        return self._exchanges[0][1]

    @property
    def exchange_s_per_step(self) -> float:
        """Time per step of the all-reduces by that way, without that of their bytes; 0 on one GPU."""
        return self._exchanges[0][0]

    @property
    def bulk_exchange_s_per_token(self) -> float:
        """As `exchange_s_per_token`, by the way for many tokens; 0 if there is one way."""
        return self._exchanges[-1][1] if len(self._exchanges) > 1 else 0.0

    @property
    def bulk_exchange_s_per_step(self) -> float:
        """What that way takes per step beyond `exchange_s_per_step`; 0 if there is one way."""
        return self._exchanges[-1][0] - self._exchanges[0][0]

    @property
    def bulk_exchange_tokens(self) -> float:
        """Steps of more tokens exchange by the way for many tokens even if it takes longer; 0 if there is one way."""
        return self.reached_link.peer_bytes / self._exchange_bytes if len(self._exchanges) > 1 else 0.0

    @property
    def _exchange_bytes(self):
        return self.model.hidden * ACTIVATION_BYTES

    @property
    def _exchanges(self):
        """Of each way of the all-reduces of a step: seconds, and seconds per token."""
        count, size = ALL_REDUCES * self.model.layers, self._exchange_bytes
        ways = self.reached_link.ways(self.gpus) or [(0.0, 0.0)]
        gathered, each_gathered = self._gathered
        return [(count * fixed + gathered, count * size * each + each_gathered) for fixed, each in ways]

    @property
    def _gathered(self):
        """Seconds, and per token of a rank, in which ranks gather the tokens of all for the experts and give them back.

        Both take what a ring's all-reduce takes in its two halves, with the fixed time of each of them. With DeepEP a
        token goes in FP8 to the GPUs of its experts, and its results come back in BF16: at the rate of peers.
        """
        if self.ranks == 1:
            return 0.0, 0.0
        if self.routes:
            copies = min(self.model.experts_per_token, self.gpus * self.ranks)
            link, layers = self.reached_link, self.model.moe_layers
            size = copies * self.model.hidden * (DISPATCHED_BYTES + ACTIVATION_BYTES)
            return 2 * layers * link.peer_latency_s, layers * size / (link.peer_bytes_per_s or link.bytes_per_s)
        fixed, each = self.reached_link.ways(self.gpus * self.ranks)[-1]
        layers = self.model.moe_layers
        return 2 * layers * fixed, layers * self.ranks * self._exchange_bytes * each

    @property
    def head_s(self) -> float:
        """Memory time of the head per step. It computes only the sampled tokens, which takes no longer."""
        return self.model.head_bytes / self._bandwidth

    @property
    def seconds_per_cached_token(self) -> float:
        """Memory time per cached token: attention reads or writes its KV, in the layers that see all tokens."""
        return self.model.read_bytes_per_token / self._cache_bandwidth

    @property
    def _cache_bandwidth(self):
        return self.gpu.bandwidth * self.gpus * self.attention_bandwidth_share / self.terms.attention_read

    def prefill_flops(self, new: ArrayLike, cached: ArrayLike = 0) -> Any:
        """FLOP of the layers for the new tokens of a prompt after its cached ones; numbers or columns of numbers."""
        new, cached = columns(new=new, cached=cached)
        windows = self.model.flops_per_window_pair * self._window_squares(new, cached)
        return 2.0 * self.model.matrix_parameters * new + self.model.flops_per_pair * _squares(new, cached) + windows

    def prefill_s(self, new: ArrayLike, cached: ArrayLike = 0) -> Any:
        """Seconds of a step that computes a single prompt."""
        new, cached = columns(new=new, cached=cached)
        windows = self.seconds_per_window_pair * self._window_squares(new, cached)
        windows += self.seconds_per_window_token * np.minimum(new + cached, self.model.window_tokens)
        step = self._step_s(new, _squares(new, cached), new + cached) + windows + self.seconds_per_request
        return np.where(new > 0, np.maximum(step, self.terms.launch_s), step)[()]

    def decode_step_s(self, batch: ArrayLike, kv_tokens: ArrayLike) -> Any:
        """Seconds of a decode step of a batch whose contexts hold `kv_tokens` in total; each request gets one token.

        A request whose context grows from p to p + 1 adds 2 * p + 1 squares and touches p + 1 tokens of KV. Windows
        hold the context, or are full: the contexts count as equally long.
        """
        batch, kv_tokens = columns(batch=batch, kv_tokens=kv_tokens)
        squares, touched, full = 2 * kv_tokens + batch, kv_tokens + batch, self.model.window_tokens * batch
        windows = self.seconds_per_window_token * np.minimum(touched, full)
        windows += self.seconds_per_window_pair * np.minimum(squares, 2 * full)
        return self._step_s(batch, squares, touched) + windows + self.seconds_per_request * batch

    def compute_s(self, new: ArrayLike, cached: ArrayLike = 0) -> Any:
        """The time that a step saves if the new tokens are not computed."""
        new, cached = columns(new=new, cached=cached)
        windows = self.seconds_per_window_pair * self._window_squares(new, cached)
        return self._saved_s_per_token * new + self.seconds_per_pair * _squares(new, cached) + windows

    def fetch_pays(self, tokens: ArrayLike, bandwidth_bytes_per_s: ArrayLike, cached: ArrayLike = 0) -> Any:
        """True if fetching the KV of `tokens` tokens after `cached` ones is faster than computing it.

        Computing takes `compute_s`; the fixed cost of the step comes with the rest of the prompt in both cases.
        """
        tokens, bandwidth, cached = columns(tokens=tokens, bandwidth_bytes_per_s=bandwidth_bytes_per_s, cached=cached)
        if not (bandwidth > 0).all():
            raise UsageError("bandwidth_bytes_per_s must be above 0.")
        # compute time > bytes / bandwidth, multiplied out
        return self.compute_s(tokens, cached) * bandwidth > self.model.fetched_bytes(tokens)

    def break_even_bandwidth(self, tokens: ArrayLike, cached: ArrayLike = 0) -> Any:
        """The bandwidth in bytes per second above which fetching the KV of `tokens` tokens pays: bytes / `compute_s`.

        It falls as contexts grow, since a later token attends to more tokens; for 0 tokens it is the value of the first
        token.
        """
        tokens, cached = columns(tokens=tokens, cached=cached)
        if self.model.grows_alike:
            seconds = self._saved_s_per_token + self.seconds_per_pair * (2 * cached + tokens)
            return self.model.kv_bytes_per_token / seconds
        tokens = np.maximum(tokens, 1)
        return self.model.fetched_bytes(tokens) / self.compute_s(tokens, cached)

    def usd(self, seconds: ArrayLike) -> Any:
        """The cost in USD of `seconds` on all GPUs."""
        (seconds,) = columns(seconds=seconds)
        return seconds * (self.gpus * self.gpu.price_per_hour / 3600)

    def _step_s(self, new, squares, kv_tokens):
        products = np.maximum(self.seconds_per_dense_token * new, self.seconds_per_step)
        touched = 1 - (1 - self.model.expert_share) ** new
        experts = np.maximum(self.seconds_per_expert_token * new, self.seconds_for_experts * touched)
        attention = self.seconds_per_pair * squares + self.seconds_per_cached_token * kv_tokens
        ways = [fixed + each * new for fixed, each in self._exchanges]
        if len(ways) > 1:
            ways[0] = np.where(new > self.bulk_exchange_tokens, ways[1], np.minimum(*ways))
        exchange = ways[0]
        return products + experts + attention + exchange + (self.head_s + self.fixed_s)

    def _window_squares(self, new, cached):
        return self.model.window_squares(cached + new) - self.model.window_squares(cached)

    @property
    def _saved_s_per_token(self):
        return self.seconds_per_token + self._exchanges[-1][1]

    @property
    def _flops(self):
        return self.gpu.flops * self.gpus * self.reached_compute_share

    def _seconds_per_flop(self, stored):
        """Seconds of a FLOP with weights of so many bytes each in the mean.

        A GPU with FP8 or FP4 multiplies such weights as they are, the others in BF16. Of a mean between those of NVFP4
        and of BF16, the share of each follows.
        """
        model, gpu, terms = self.model, self.gpu, self.terms
        if model.fp8 and gpu.fp8_flops:
            return terms.fp8_products * self.gpu.flops / gpu.fp8_flops / self._flops
        if model.fp4 and gpu.fp4_flops and stored < PLAIN_BYTES:
            share = min((PLAIN_BYTES - stored) / (PLAIN_BYTES - NVFP4_BYTES), 1.0)
            return (1 - share + share * terms.fp4_products * gpu.flops / gpu.fp4_flops) / self._flops
        return 1 / self._flops

    @property
    def _bandwidth(self):
        return self.gpu.bandwidth * self.gpus * self.reached_bandwidth_share


def roofline_of(deployment: Deployment) -> Roofline:
    """The model of a deployment on the GPUs of one instance; UsageError without a model or a GPU.

    >>> from kvtrace.serving.deployment import Deployment
    >>> roofline_of(Deployment("deepseek-v3", gpu="h200", tensor_parallel_size=8)).model.kv_bytes_per_token // 8
    70272
    """
    if deployment.model is None:
        raise UsageError("--gpu needs --model.")
    if deployment.gpu is None:
        raise UsageError(f"Give the GPU of {deployment.model_name}: --gpu, or Deployment(gpu=...).")
    shape, device = deployed_shape(deployment), gpu(deployment.gpu)
    return Roofline(
        shape, device, deployment.gpus_per_instance, terms=step_terms(deployment, shape, device),
        ranks=deployment.data_parallel_size if in_lockstep(deployment, has_experts=shape.moe_layers > 0) else 1,
        routes=deployment.all2all_backend is not None,
    )  # fmt: skip


def deployed_shape(deployment: Deployment) -> ModelShape:
    """The shape of a model as the GPUs of one instance hold it: KV that several GPUs have copies of counts for each."""
    shape = model_shape(deployment.served_model, dtype=deployment.weights_dtype)
    tensor = deployment.tensor_parallel_size
    kinds = rank_layers(replace(deployment.in_memory, pipeline_parallel_size=1))
    held = tuple(
        replace(kind, token_bytes=tensor * kind.token_bytes, state_bytes=tensor * kind.state_bytes) for kind in kinds
    )
    return replace(shape, cache=held, kv_bytes_per_token=growing_bytes(held))


def _squares(new, cached):
    return new * (2 * cached + new)  # (cached + new)**2 - cached**2
