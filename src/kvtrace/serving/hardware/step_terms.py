"""What a step takes beside its products and its reading: engines, kernels, and servers; a fit to public measurements.

Each figure was fitted to the development half of benchmarks/silicon.py (597 closed loops of vLLM 0.10 to 0.19 and of
SGLang 0.5 on H100, H200 and B200), and frozen before the other half was looked at; docs/serving/models.md has the
errors. On the 438 development rows with known flags TPOT is 6.4 % off and TTFT 16.8 % with all terms. Beside a term
stand these two errors without it. A Roofline without terms has the peaks of its GPU alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..deployment import Deployment
from ..models.shape import ModelShape
from .gpus import Gpu


@dataclass(frozen=True)
class StepTerms:
    """Seconds, and multiples of ideal times; the defaults are the ideal ones."""

    step_s: float = 0.002  # each step: scheduling, input preparation, sampling, kernels of each layer
    request_s: float = 0.0  # each request of a step: attention's metadata, sampling, output
    dense_read: float = 1.0  # multiple of the time to read weights that are not routed experts
    expert_read: float = 1.0  # likewise of routed experts
    attention_read: float = 1.0  # likewise of what attention reads
    fp8_products: float = 1.0  # multiple of the time of products in FP8
    fp4_products: float = 1.0
    expert_products: float = 1.0  # likewise of routed experts, on top
    launch_s: float = 0.0  # the least of a step with prompts: kernels that no CUDA graph launches
    front_request_s: float = 0.0  # of the API server, for one request after another
    front_token_s: float = 0.0  # likewise, per prompt token
    front_delay_s: float = 0.0  # from a client to the engine and back, beside that


IDEAL = StepTerms()

SYNCHRONOUS_S = 1.3e-3  # vLLM before 0.14 plans a step after the one before (vllm, pull request 27614): 7.0, 16.8
HOST_S = {"vllm": 0.16e-3, "sglang": 0.58e-3}  # with 2 ms for both: 16.7, 15.3
LAYER_S = 13e-6  # gaps between the kernels of a layer: 8.5, 17.4
QUANTISED_LAYER_S = 23e-6  # the kernels that quantise activations before products in FP8 and FP4: 9.6, 17.8
EXPERT_LAYER_S = 50e-6  # routing, sorting, and a floor of the kernels: 20.4, 19.9
LATENT_LAYER_S = 23e-6  # latent attention's extra products; with the indexer: 7.4, 16.8
INDEXER_LAYER_S = 38e-6
REQUEST_S = 17e-6  # 7.1, 17.3
# SGLang computes prompts without CUDA graphs: launches of a layer, of its experts, and of other attention: 6.3, 20.1
LAUNCH_S, EXPERT_LAUNCH_S, MIXED_LAUNCH_S = 0.93e-3, 0.86e-3, 0.63e-3
FRONT_REQUEST_S, FRONT_TOKEN_S = 2.0e-3, 5.0e-6  # with the way below: 6.4, 33.8
FRONT_DELAY_S = {"vllm": 15e-3, "sglang": 21e-3}
HBM_BYTES_PER_S = 3e12  # from here on products of a step are too small to use all of the bandwidth
DENSE_READ = (1.12, 1.23)  # Hopper, Blackwell: 6.5, 16.8
EXPERT_READ = (1.20, 0.80)  # 16 and 8 bits, and 4 bits in kernels of Blackwell; routers prefer some: 7.2, 16.9
ATTENTION_READ = 0.88  # 6.7, 16.9
FP8_PRODUCTS, FP4_PRODUCTS = 2.25, 3.2  # 7.4, 26.2
EXPERT_PRODUCTS = {"vllm": 4.3, "sglang": 9.4}  # 7.7, 32.2
FUSED_EXPERT_PRODUCTS = 2.2  # in kernels of Blackwell for 4 bits, which both engines have


def step_terms(deployment: Deployment, model: ModelShape, gpu: Gpu) -> StepTerms:
    """The terms of an engine, its version, a model and a GPU; engines other than SGLang count as vLLM."""
    engine = "sglang" if deployment.engine == "sglang" else "vllm"
    dense_bytes, expert_bytes = model.stored_bytes
    latent = model.layers if model.kv_lora_rank else 0
    kernels = (
        LAYER_S * model.layers + (QUANTISED_LAYER_S * model.layers if dense_bytes < 1.5 else 0)
        + EXPERT_LAYER_S * model.moe_layers + LATENT_LAYER_S * latent + INDEXER_LAYER_S * model.indexer_layers
    )  # fmt: skip
    host = SYNCHRONOUS_S if engine == "vllm" and _is_before(deployment.engine_version, (0, 14)) else HOST_S[engine]
    other = latent + model.mixer_layers  # layers without plain attention
    launches = LAUNCH_S * model.layers + EXPERT_LAUNCH_S * model.moe_layers + MIXED_LAUNCH_S * other
    is_fast, is_blackwell = gpu.bandwidth >= HBM_BYTES_PER_S, gpu.fp4_flops is not None
    is_fused = is_blackwell and model.fp4 and expert_bytes < 1
    # with DeepEP, experts are DeepGEMM's grouped products, which reach what its dense ones do
    # (github.com/deepseek-ai/DeepGEMM, tables of both on H800)
    products = EXPERT_PRODUCTS[engine] if deployment.all2all_backend is None else 1.0
    return StepTerms(
        step_s=host + kernels, request_s=REQUEST_S, dense_read=DENSE_READ[is_blackwell] if is_fast else 1.0,
        attention_read=ATTENTION_READ if is_fast else 1.0, expert_read=EXPERT_READ[is_fused], fp8_products=FP8_PRODUCTS,
        fp4_products=FP4_PRODUCTS, expert_products=FUSED_EXPERT_PRODUCTS if is_fused else products,
        launch_s=launches if engine == "sglang" else 0.0,
        front_request_s=FRONT_REQUEST_S, front_token_s=FRONT_TOKEN_S, front_delay_s=FRONT_DELAY_S[engine],
    )  # fmt: skip


def _is_before(version: str | None, bound: tuple[int, int]) -> bool:
    """Whether a version is known, and older.

    >>> _is_before("0.12.0", (0, 14)), _is_before("0.19.0", (0, 14)), _is_before(None, (0, 14))
    (True, False, False)
    """
    parts = re.match(r"(\d+)\.(\d+)", version or "")
    return parts is not None and (int(parts[1]), int(parts[2])) < bound
