"""What the attention kernels that vLLM takes on a GPU decide: the tokens of a block, and how FP8 latents are stored.

vLLM 0.33.0 ranks its attention backends by the GPU's generation (platforms/cuda.py), and takes the block size that the
first valid one supports (update_block_size_for_backend). Checked: with its own selection for each generation and the
models of the catalog (tests/clients/test_vllm_deployments.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...cache.layout import LayerKind
from .config import Fields

GENERATIONS = {  # generation -> how the names of its GPUs begin; a GPU without a name here counts as Hopper
    "ampere": ("a100", "a800", "a40", "a10", "a30", "rtx-3"),
    "ada": ("l40", "l4", "rtx-4", "rtx-6000-ada"),
    "blackwell": ("b100", "b200", "b300", "gb200", "gb300"),
    "rtx-blackwell": ("rtx-5", "rtx-pro"),
}
STATE_KERNELS = {  # field of a mechanism of states -> vLLM's prefill kernel on Hopper GPUs and later
    "linear_attn_config": "flashkda", "linear_num_heads": "flashkda", "linear_num_key_heads": "flashinfer",
    "mamba_num_heads": "mamba2", "mamba_n_heads": "mamba2",
}  # fmt: skip
BLOCK, SPARSE_BLOCK, BLOCK_SPARSE_BLOCK = 16, 64, 128  # of most kernels, of those with an indexer, of MiniMax M3's
FP8_LATENT_BLOCK = {"hopper": 64}  # FlashMLA, which Hopper GPUs take where the latents are FP8
LATENT_BLOCK = {"blackwell": 32}  # FlashInfer's
WIDE_HEAD, WIDE_FP8_BLOCK = 256, 64  # FlashAttention 4, which Hopper GPUs take for FP8 keys of wider heads


def generation(gpu: str | None) -> str:
    """The generation of a GPU by its name; "hopper" where nothing else is known.

    >>> generation("a100-40gb"), generation("h200"), generation(None)
    ('ampere', 'hopper', 'hopper')
    """
    name = str(gpu or "").lower()
    return next((kind for kind, starts in GENERATIONS.items() if name.startswith(starts)), "hopper")


def attention_block(fields: Fields, kinds: Iterable[LayerKind], gpu: str | None, *, fp8: bool) -> int:
    """The smallest number of tokens that vLLM's kernels for these layers take in a block."""
    kinds, family = list(kinds), generation(gpu)
    if "index_block_size" in fields or "sparse_attention_config" in fields:
        return BLOCK_SPARSE_BLOCK
    if any(kind.indexer for kind in kinds):
        return SPARSE_BLOCK
    if any(kind.kind == "latent" for kind in kinds):
        return (FP8_LATENT_BLOCK if fp8 else LATENT_BLOCK).get(family, LATENT_BLOCK.get(family, BLOCK))
    wide = fields.whole("global_head_dim", 0, least=0) > WIDE_HEAD
    return WIDE_FP8_BLOCK if wide and fp8 and family == "hopper" else BLOCK


def state_kernel(fields: Fields, gpu: str | None) -> str:
    """vLLM's prefill kernel of the states of a model, a key of `cache_groups.STATE_KERNELS`."""
    field = fields.first(*STATE_KERNELS)
    kernel = STATE_KERNELS[field] if field else "split"
    return "split" if kernel != "mamba2" and generation(gpu) in ("ampere", "ada") else kernel
