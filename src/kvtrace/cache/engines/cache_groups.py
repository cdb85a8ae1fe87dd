"""The cache groups that vLLM and SGLang make of a model's layers, with their block and page sizes.

vLLM 0.33.0 follows get_kv_cache_groups (vllm/v1/core/kv_cache_planning.py), _align_hybrid_block_size
(platforms/interface.py), resolve_kv_cache_block_sizes (v1/core/kv_cache_utils.py) and get_mamba_prefill_checkpoint_grid
(model_executor/layers/mamba/abstract.py), with what a server takes by default: prefix caching, the hybrid KV cache
manager. Checked: against these functions, for the layers of published models and for random ones
(tests/clients/test_vllm_layout.py), and for whole models under parallelism (tests/clients/test_vllm_deployments.py).

SGLang 0.5.23 has a pool of full attention, and one of windows or states beside it (sglang.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import lcm

from ..._base.errors import UsageError, wrong_word
from ..layout import STEP_TOKENS, CacheGroup, CacheLayout, LayerKind

DEFAULT_BLOCK_SIZE = 16
KERNEL_BLOCK = 16  # FlashAttention and its latent kernel read multiples of it
LATENT_KERNEL_BLOCK = 128  # of a model that has latent layers and states
ATTENDS_ALL = ("full", "latent")


@dataclass(frozen=True)
class StateKernel:
    """What a prefill kernel of states saves from inside a step."""

    block_alignment: int = 1  # vLLM makes the blocks of states multiples of it
    checkpoint_alignment: int | None = 0  # tokens between positions that it can save; None = a block, 0 = none


STATE_KERNELS: dict[str, StateKernel] = {
    "split": StateKernel(),  # Mamba-1, short convolutions, linear attention, gated delta nets in Triton: none
    "mamba2": StateKernel(checkpoint_alignment=1),  # any GPU
    "flashinfer": StateKernel(block_alignment=64, checkpoint_alignment=None),  # gated delta nets, on an H100 by default
    "flashkda": StateKernel(checkpoint_alignment=16),  # Kimi's delta attention, on an H100 by default
}


@dataclass(frozen=True)
class Pages:
    """Equal layers, with the tokens of a block and the bytes of its page in one layer."""

    layers: LayerKind  # with all layers
    in_stages: tuple[int, ...]  # layers of each pipeline stage
    block_size: int
    page_bytes: int

    def every(self, step: int, start: int) -> Pages:
        """Layers start, start + step, ... of them, counted through the stages."""
        ends = list(accumulate(self.in_stages, initial=0))
        counts = tuple(
            len(range(start + -(-max(first - start, 0) // step) * step, last, step)) for first, last in pairwise(ends)
        )
        return replace(self, layers=replace(self.layers, layers=sum(counts)), in_stages=counts)

    @property
    def as_full(self) -> Pages:
        """The same pages where the layers keep all tokens."""
        kind = "latent" if self.layers.kind == "latent" else "full"
        return replace(self, layers=replace(self.layers, kind=kind, window=0))


def vllm_layout(
    layers: Sequence[LayerKind],
    *,
    block_size: int | None = None,
    retention_interval: int | None = 0,
    state_kernel: str = "split",
    hybrid: bool = True,
    kernel_block: int = KERNEL_BLOCK,
    context_shards: int = 1,
    later_stages: Sequence[Sequence[LayerKind]] = (),
) -> CacheLayout:
    """Lay out a model's layers as vLLM 0.33.0 does.

    Args:
        layers: The layers of the model by kind, in the order of the first layer of each kind; under tensor parallelism
            with what one GPU keeps of them.
        block_size: Tokens (--block-size); None = vLLM's default. A model with states may get larger blocks.
        retention_interval: Tokens between the checkpoints that vLLM retains (--prefix-cache-retention-interval).
        state_kernel: The prefill kernel of the states, a key of STATE_KERNELS.
        hybrid: Whether layers of different kinds have their own groups (--disable-hybrid-kv-cache-manager: False).
        kernel_block: Tokens of a block that the attention kernels read; blocks hold at least as many.
        context_shards: GPUs that share the tokens of a block of attention (--decode-context-parallel-size).
        later_stages: The layers of further pipeline stages; `layers` are those of the first.

    Returns:
        The groups in vLLM's order, each with its layers in the stage that has most of them; block_bytes is what vLLM
        divides the memory for KV by, on a GPU of the stage whose blocks are largest.

    Raises:
        UsageError: vLLM refuses these layers or options, or its rules for them are not modelled.

    >>> gemma = [LayerKind("window", layers=52, token_bytes=8192, window=1024), LayerKind("full", 10, 8192)]
    >>> [(group.kind, group.layers) for group in vllm_layout(gemma).groups]  # doctest: +NORMALIZE_WHITESPACE
    [('window', 9), ('window', 9), ('window', 9), ('window', 9), ('window', 8), ('window', 8), ('full', 10)]
    """
    kernel = STATE_KERNELS.get(state_kernel)
    if kernel is None:
        raise wrong_word(state_kernel, "a kernel of states", STATE_KERNELS)
    kinds = merged(layers, *later_stages)
    if any(kind.tokens_per_entry != 1 for kind in kinds):
        raise UsageError("vLLM has rules of its own for compressed layers, which this layout does not model.")
    pages = _pages(kinds, _block_size(kinds, block_size, kernel, kernel_block))
    if not hybrid and not _one_table(pages):
        pages = _promoted(pages)
    groups = [pages] if _one_table(pages) else _groups(pages)
    layout = CacheLayout(
        tuple(_group(group, context_shards) for group in groups),
        block_bytes=max(
            sum(part.in_stages[stage] * part.page_bytes for part in group)
            for group in groups
            for stage in range(1 + len(later_stages))
        ),
        retention_interval=retention_interval,
        internal_checkpoint_alignment=_checkpoint_alignment(groups, kernel),
    )
    _check(layout)
    return layout


def merged(*stages: Sequence[LayerKind]) -> dict[LayerKind, list[int]]:
    """Each kind of layer, in the order of the first, with its number of layers in each stage."""
    merged: dict[LayerKind, list[int]] = {}
    for stage, layers in enumerate(stages):
        for entry in layers:
            if entry.layers < 1:
                raise UsageError(f"a kind of layer needs at least one layer: {entry}.")
            if not (entry.state_bytes if entry.kind == "state" else entry.token_bytes):
                raise UsageError(f"the bytes of a kind of layer are not known: {entry}.")
            merged.setdefault(replace(entry, layers=1), [0] * len(stages))[stage] += entry.layers
    if not merged:
        raise UsageError("a model without layers has no cache.")
    return merged


def _block_size(kinds: Iterable[LayerKind], wanted: int | None, kernel: StateKernel, kernel_block: int) -> int:
    """Tokens of a block: a page of attention must be at least as large as a state."""
    kinds = list(kinds)
    block_size = max(DEFAULT_BLOCK_SIZE, kernel_block) if wanted is None else wanted
    attends = any(entry.kind != "state" for entry in kinds)
    multiple = kernel_block if any(entry.indexer for entry in kinds) else KERNEL_BLOCK
    if block_size < 1 or (attends and block_size % multiple):
        raise UsageError(f"vLLM's blocks hold a multiple of {multiple} tokens; {block_size} is not one.")
    state_bytes = max(entry.state_bytes for entry in kinds)
    attention = _main_attention(kinds)
    if not state_bytes or attention is None:
        return block_size
    step = max(block_size, LATENT_KERNEL_BLOCK) if attention.kind == "latent" else block_size
    step = lcm(step, kernel.block_alignment)
    return step * -(-state_bytes // (step * attention.token_bytes))


def _main_attention(kinds: Iterable[LayerKind]) -> LayerKind | None:
    """The attention that the model's config describes, whose pages those of the states equal."""
    order = ("latent", "full", "window", "chunk")
    attention = [entry for entry in kinds if entry.kind != "state"]
    return min(attention, key=lambda entry: order.index(entry.kind), default=None)


def _pages(kinds: dict[LayerKind, list[int]], block_size: int) -> list[Pages]:
    """Each kind with its page; a state's page is as large as one of attention, where there is attention."""
    attention = _main_attention(kinds)
    pages = []
    for entry, in_stages in kinds.items():
        padded = entry.state_bytes if attention is None else block_size * attention.token_bytes
        page_bytes = padded if entry.kind == "state" else block_size * entry.token_bytes
        pages.append(Pages(replace(entry, layers=sum(in_stages)), tuple(in_stages), block_size, page_bytes))
    return pages


def _one_table(pages: list[Pages]) -> bool:
    """Whether all layers keep the same tokens, so that one table of blocks serves them (vLLM's uniform types)."""
    kinds = {part.layers.kind for part in pages}
    if kinds <= set(ATTENDS_ALL):
        return True
    if kinds == {"state"}:
        return len({part.page_bytes for part in pages}) == 1
    return len(kinds) == 1 and len({part.layers.window for part in pages}) == 1


def _promoted(pages: list[Pages]) -> list[Pages]:
    """Windows and chunks that keep all tokens, as full attention does (_promote_local_kv_cache_specs)."""
    kinds = {part.layers.kind for part in pages}
    if "state" in kinds or not kinds & set(ATTENDS_ALL):
        raise UsageError("vLLM refuses this model without its hybrid KV cache manager: its layers cannot share blocks.")
    sizes = {(part.layers.kind, part.layers.window) for part in pages if part.layers.window}
    if "latent" not in kinds and len(sizes) > len({kind for kind, _ in sizes}):
        raise UsageError("vLLM refuses windows of several sizes without its hybrid KV cache manager.")
    return [part.as_full for part in pages]


def _groups(pages: list[Pages]) -> list[list[Pages]]:
    """Groups of equal pages and equal layers, with about as many layers each (_get_kv_cache_groups_uniform_page_size).

    Where pages cannot be made equal, windows beside latent layers keep all tokens, in one group.
    """
    equal = _equal_pages(pages)
    if equal is None:
        kinds = {part.layers.kind for part in pages}
        if not kinds <= {"window", *ATTENDS_ALL}:
            raise UsageError("vLLM refuses this model: it cannot make the pages of its layers equally large.")
        return [[part.as_full for part in pages]]
    smallest, largest = min(part.layers.layers for part in equal), max(part.layers.layers for part in equal)
    width = largest if largest < 1.5 * smallest else smallest
    groups = []
    for part in equal:
        count = -(-part.layers.layers // width)
        groups += [[part.every(count, number)] for number in range(count)]
    return groups


def _equal_pages(pages: list[Pages]) -> list[Pages] | None:
    """Pages of one size, by larger blocks where that divides, else by padding; None where vLLM cannot."""
    largest = max(part.page_bytes for part in pages)
    equal = []
    for part in pages:
        ratio, rest = divmod(largest, part.page_bytes)
        if rest and part.layers.kind == "latent":
            return None  # its kernels index whole rows, so that its pages cannot be padded
        scaled = 1 if rest or part.layers.kind == "state" else ratio
        equal.append(replace(part, block_size=part.block_size * scaled, page_bytes=largest))
    return equal


def _group(parts: list[Pages], context_shards: int) -> CacheGroup:
    kind, window = parts[0].layers.kind, parts[0].layers.window
    if context_shards > 1 and window:
        raise UsageError("vLLM refuses windows and chunks under --decode-context-parallel-size.")
    layers = max(sum(counts) for counts in zip(*(part.in_stages for part in parts), strict=True))
    span = parts[0].block_size * (context_shards if kind in ATTENDS_ALL else 1)
    return CacheGroup("full" if kind in ATTENDS_ALL else kind, layers, span, window)


def _checkpoint_alignment(groups: list[list[Pages]], kernel: StateKernel) -> int:
    blocks = [part.block_size for group in groups for part in group if part.layers.kind == "state"]
    if not blocks:
        return 0
    return blocks[0] if kernel.checkpoint_alignment is None else kernel.checkpoint_alignment


def _check(layout: CacheLayout) -> None:
    """Refuse what vLLM refuses when it starts or looks up its first prompt."""
    step, interval = layout.scheduler_block_size, layout.retention_interval
    if any(group.kind == "chunk" and group.block_size != step for group in layout.groups):
        raise UsageError("vLLM refuses chunked layers beside groups with other block sizes.")
    sparse = any(group.kind in ("window", "state") for group in layout.groups)
    if interval and not sparse:
        raise UsageError("vLLM refuses a retention interval for a model that has no windows or states.")
    if interval and (interval < 0 or interval % step):
        raise UsageError(f"the retention interval must be 0 or a multiple of {step:,} tokens, not {interval:,}.")


WINDOW_RATIO = 0.8  # --swa-full-tokens-ratio
STATE_RATIO = 0.9  # --mamba-full-memory-ratio
STATE_CHUNK = 64  # tokens between two states that a prefill can record; a larger block takes its place


def sglang_layout(
    layers: Iterable[LayerKind],
    block_size: int,
    *,
    swa_full_tokens_ratio: float = WINDOW_RATIO,
    mamba_full_memory_ratio: float = STATE_RATIO,
    mamba_chunk_size: int = STATE_CHUNK,
    chunked_prefill_size: int = STEP_TOKENS,
) -> CacheLayout:
    """The two pools that SGLang makes of a model's layers; the arguments are named as SGLang's.

    Args:
        layers: The model's layers by kind.
        block_size: Tokens of a block; SGLang's --page-size.
        swa_full_tokens_ratio: Tokens of the pool of windows for each token of the first pool.
        mamba_full_memory_ratio: Bytes of the pool of states for each byte of the first pool.
        mamba_chunk_size: Tokens between two states that a prefill can record, from the model's config.json or 64.
        chunked_prefill_size: Tokens of a prompt that one step computes; 0 = all of it.

    Raises:
        UsageError: SGLang or this model of it has no tree for the layers.

    >>> linear = LayerKind("state", 36, state_bytes=2_000_000)
    >>> layout = sglang_layout([LayerKind("full", 12, token_bytes=2048), linear], block_size=16)
    >>> [(group.kind, group.block_size) for group in layout.groups], round(layout.second_ratio, 4)
    ([('full', 16), ('state', 64)], 0.0049)
    """
    layers = list(layers)
    full = [kind for kind in layers if kind.kind in ("full", "latent")]
    others = {(kind.kind, kind.window) for kind in layers if kind not in full}
    if not full or len(others) > 1:
        raise UsageError("SGLang's tree has full attention and at most one other kind of layers.")
    block_bytes = block_size * sum(kind.bytes_per_token for kind in full)
    groups = [CacheGroup("full", sum(kind.layers for kind in full), block_size)]
    ratio = swa_full_tokens_ratio
    for name, window in others:
        count = sum(kind.layers for kind in layers if kind.kind == name)
        groups.append(
            CacheGroup(name, count, max(mamba_chunk_size, block_size) if name == "state" else block_size, window)
        )
    share = 0.0  # bytes of the second pool for each block of the first
    if ("state", 0) in others:
        state_bytes = sum(kind.layers * kind.state_bytes for kind in layers)
        if not state_bytes:
            raise UsageError("the layers with states must have state_bytes.")
        ratio = mamba_full_memory_ratio * block_bytes / state_bytes
        share = mamba_full_memory_ratio * block_bytes
    elif others:
        share = ratio * block_size * sum(kind.bytes_per_token for kind in layers if kind not in full)
    return CacheLayout(tuple(groups), round(block_bytes + share), second_ratio=ratio, step_tokens=chunked_prefill_size)
