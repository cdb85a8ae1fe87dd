"""The share of a model that one GPU of a deployment has: which heads it keeps, and the bytes of what it keeps.

Tensor parallelism divides heads, and GPUs copy them where there are fewer heads than GPUs; each GPU keeps all of a
latent. The dtype of keys and values is the engine's `--kv-cache-dtype`. With an indexer, vLLM packs FP8 latents with
their scales and a 16-bit rotation (fp8_ds_mla), and both engines keep the indexer's keys in FP8 in any cache. Checked:
against vLLM's own models and layers (tests/clients/test_vllm_deployments.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._base.errors import UsageError
from .config import Fields, config_dtype, kv_bits, read_config
from .kernels import generation

if TYPE_CHECKING:
    from ..deployment import Deployment

KV_DTYPES: Mapping[str, Mapping[str, int | None]] = {  # engine -> its names -> bits of a value; None = the model's
    "vllm": {"auto": None, "float16": 16, "bfloat16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_ds_mla": 8},
    "sglang": {"auto": None, "bf16": 16, "bfloat16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8},
}
PACKED_LATENT = 656  # bytes of fp8_ds_mla: 512 values in FP8, 4 scales of 4 bytes, 64 values of rotation in 16 bits
PACKED = (512, 64)  # the values that it is made for
INDEXER_BITS = 8
TRITON_ALONE = ("gpt_oss", "gemma4", "mimo_v2")  # sinks, wide heads, values of another width: on an Ampere GPU
NOT_COPIED = ("gpt_oss",)  # model types whose class in vLLM fails with more GPUs than heads of keys


@dataclass(frozen=True)
class Share:
    """What one GPU of a tensor-parallel group keeps of a layer, and in how many bytes."""

    value_bits: int  # of keys, values and latents
    indexer_bits: int  # of an indexer's keys
    indexer_scales: bool = False  # 4 bytes for each 128 values of an indexer's key
    latent_bytes: int | None = None  # of a latent with its scales, where it is packed
    gpus: int = 1  # that divide the heads
    state_dtype: str | None = None
    drafted_tokens: int = 0  # for which a state keeps past inputs


def config_of(deployment: Deployment) -> Fields:
    """The config of a deployment's model; UsageError if it names none."""
    if deployment.model is None:
        raise UsageError("The deployment names no model. Give --model.")
    return read_config(deployment.model)


def heads_of_gpu(fields: Fields, heads: int, gpus: int) -> int:
    """Heads of keys and values that one GPU keeps.

    >>> heads_of_gpu(Fields("config.json", {}), 8, 2), heads_of_gpu(Fields("config.json", {}), 4, 8)
    (4, 1)
    """
    if max(heads, gpus) % min(heads, gpus):
        raise UsageError(
            f"{fields.name}: {gpus} GPUs cannot divide or copy {heads} heads of keys and values evenly. Try another "
            "--tensor-parallel-size."
        )
    return max(1, heads // gpus)


def gpu_share(fields: Fields, deployment: Deployment) -> Share:
    """What one GPU of a deployment keeps of a layer; UsageError for a dtype that its engine does not take."""
    bits, packed = kv_format(fields, deployment)
    return Share(
        value_bits=bits,
        indexer_bits=INDEXER_BITS if "kv_lora_rank" in fields else 16,  # MiniMax M3's are plain keys
        indexer_scales="kv_lora_rank" in fields,
        latent_bytes=PACKED_LATENT if packed else None,
        gpus=deployment.tensor_parallel_size,
        # of recurrent states: SGLang's where the config states none
        state_dtype="float32" if deployment.engine == "sglang" and "mamba_ssm_dtype" not in fields else None,
        # vLLM keeps past inputs for them in a state, SGLang in buffers beside the pool
        drafted_tokens=deployment.speculative.tokens if deployment.speculative and deployment.engine == "vllm" else 0,
    )


def kv_format(fields: Fields, deployment: Deployment) -> tuple[int, bool]:
    """Bits of a value of keys and values in the engine's cache, and whether latents are packed with their scales."""
    names, engine = KV_DTYPES.get(deployment.engine), deployment.engine
    if names is None:
        raise UsageError(f"Engine {engine} has no layout here. Try {' or '.join(KV_DTYPES)}.")
    wanted = deployment.kv_cache_dtype
    if wanted == "auto":
        wanted = default_dtype(fields, deployment)
    if wanted not in names:
        raise UsageError(f"--kv-cache-dtype {wanted} is not modelled for {engine}. Try {', '.join(names)}.")
    latent, sparse = "kv_lora_rank" in fields, "kv_lora_rank" in fields and "index_head_dim" in fields
    if wanted == "fp8_ds_mla" and not sparse:
        raise UsageError(f"{fields.name}: fp8_ds_mla is for latents with an indexer. Try --kv-cache-dtype fp8.")
    own, family = config_dtype(fields), generation(deployment.gpu_name)
    if {wanted, own} == {"float16", "bfloat16"}:
        raise UsageError(f"{fields.name}: --kv-cache-dtype {wanted} does not go with {own}. Try auto.")
    if wanted == "fp8_e5m2" and latent:
        raise UsageError(f"{fields.name}: no kernel keeps latents in fp8_e5m2. Try --kv-cache-dtype fp8_e4m3.")
    bits = names[wanted] or min(kv_bits(fields, None), 16)  # engines cast 32 bits to 16
    if engine == "vllm":
        _check_kernels(fields, deployment, bits)
    always = engine == "vllm" and wanted == "auto" and family == "rtx-blackwell"  # packed in any cache
    if not sparse or (bits == 16 and not always):
        return bits, False
    sizes = fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim", least=0)
    if sizes != PACKED:
        raise UsageError(f"{fields.name}: FP8 latents of {sizes[0]} and {sizes[1]} values are not modelled.")
    return 8, family != "blackwell"  # whose kernels read plain FP8 latents


def default_dtype(fields: Fields, deployment: Deployment) -> str:
    """The dtype that an engine takes for --kv-cache-dtype auto; "auto" is that of the model."""
    asked, family = checkpoint_dtype(fields), generation(deployment.gpu_name)
    if asked != "auto" or "index_head_dim" not in fields or "kv_lora_rank" not in fields:
        return asked
    if deployment.engine == "sglang":
        return "fp8_e4m3" if family in ("blackwell", "rtx-blackwell") else "bfloat16"
    glm = str(fields.values.get("model_type", "")).startswith("glm_moe_dsa")
    return "fp8" if glm and family == "blackwell" else "auto"


def _check_kernels(fields, deployment, bits):
    """Refuse what vLLM's kernels do not take on a generation of GPUs."""
    family, model_type = generation(deployment.gpu_name), str(fields.values.get("model_type", ""))
    latent = "kv_lora_rank" in fields
    if latent and "index_head_dim" in fields and family in ("ampere", "ada"):
        raise UsageError(f"{fields.name}: vLLM has no kernel for latents with an indexer on {deployment.gpu_name}.")
    triton = latent or model_type.startswith(TRITON_ALONE)
    if bits == 8 and ((family == "ampere" and triton) or (family == "blackwell" and model_type.startswith("mimo_v2"))):
        raise UsageError(
            f"{fields.name}: vLLM has no kernel for its FP8 cache on {deployment.gpu_name}. Leave --kv-cache-dtype out."
        )


def checkpoint_dtype(fields: Fields) -> str:
    """The --kv-cache-dtype that a quantised checkpoint asks for (ModelOpt's kv_cache_quant_algo); "auto" if none.

    >>> checkpoint_dtype(Fields("config.json", {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}))
    'fp8'
    """
    quantised = fields.values.get("quantization_config")
    if not isinstance(quantised, dict):
        return "auto"
    inner = quantised.get("quantization")
    places = [inner, quantised] if isinstance(inner, dict) else [quantised]
    for place in places:
        scheme = place.get("kv_cache_scheme") or place.get("kv_cache_quant_algo")
        if isinstance(scheme, dict):
            return {8: "fp8", 4: "nvfp4"}.get(scheme.get("num_bits", 0), "auto")
        if isinstance(scheme, str):
            return scheme.lower()
    return "auto"


def check_compressed(fields: Fields, deployment: Deployment) -> None:
    """Refuse a deployment of DeepSeek V4's compressed attention that is not modelled."""
    if deployment.engine != "vllm":
        raise UsageError(f"{fields.name}: compressed attention is modelled in vLLM alone.")
    if deployment.kv_cache_dtype not in ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"):
        raise UsageError(f"{fields.name}: vLLM keeps compressed attention in FP8. Leave --kv-cache-dtype out.")


def check_division(fields: Fields, deployment: Deployment) -> None:
    """Refuse what the engine refuses when it divides a model; UsageError in one line."""
    tensor = deployment.tensor_parallel_size
    heads = fields.whole("num_attention_heads", 0, least=0)
    if heads % tensor:
        raise UsageError(f"{fields.name}: {heads} query heads are not a multiple of --tensor-parallel-size {tensor}.")
    copied = not str(fields.values.get("model_type", "")).startswith(NOT_COPIED) or deployment.engine != "vllm"
    if not copied and tensor > fields.whole("num_key_value_heads", heads):
        raise UsageError(f"{fields.name}: vLLM copies no heads of keys for it. Lower --tensor-parallel-size.")
    if deployment.decode_context_parallel_size > 1 or deployment.prefill_context_parallel_size > 1:
        _check_context(fields, deployment, heads)


def _check_context(fields, deployment, heads):
    """vLLM's rules of context parallelism (config/parallel.py, config/model.py)."""
    tensor = deployment.tensor_parallel_size
    decode, prefill = deployment.decode_context_parallel_size, deployment.prefill_context_parallel_size
    if deployment.engine != "vllm":
        raise UsageError("Context parallelism is modelled in vLLM alone.")
    latent = "kv_lora_rank" in fields or "compress_ratios" in fields
    if prefill > 1 and not latent:
        raise UsageError(f"{fields.name}: vLLM has --prefill-context-parallel-size for latent attention alone.")
    if prefill == 1 and tensor % decode:
        raise UsageError(f"--decode-context-parallel-size {decode} must divide --tensor-parallel-size {tensor}.")
    if prefill > 1 and decode not in (1, prefill, tensor * prefill):
        raise UsageError(
            f"--decode-context-parallel-size {decode} must be 1, {prefill} or {tensor * prefill} with "
            f"--prefill-context-parallel-size {prefill}."
        )
    if decode > 1 and "kv_lora_rank" in fields and "index_head_dim" in fields and not kv_format(fields, deployment)[1]:
        raise UsageError(
            f"{fields.name}: vLLM has --decode-context-parallel-size with an indexer in FP8 alone. Try "
            "--kv-cache-dtype fp8."
        )
    if decode > 1 and prefill > 1 and "index_head_dim" not in fields:
        raise UsageError(f"{fields.name}: vLLM has context parallelism of both kinds with an indexer alone.")
    if decode == 1 or latent:
        return
    key_heads = fields.whole("num_key_value_heads", heads)
    if tensor // key_heads < decode or tensor <= key_heads:
        raise UsageError(
            f"{fields.name} has {key_heads} heads of keys and values: --decode-context-parallel-size is at most "
            f"{max(tensor // key_heads, 1)} at --tensor-parallel-size {tensor}."
        )
    if heads // key_heads % decode:
        raise UsageError(
            f"{fields.name}: --decode-context-parallel-size {decode} does not divide {heads // key_heads} query heads "
            "for each head of keys."
        )
