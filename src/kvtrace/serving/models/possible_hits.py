"""What a model's cache makes of a trace's possible hits, and which block size or retention interval would do better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ..._base.errors import UsageError
from ..._base.results import Described, DescribedResult, column, columns_of
from ...cache.demand import SERIAL
from ...cache.engines import EngineName
from ...cache.layout import CacheLayout
from ...cache.simulation import Setting, run
from ...trace.columns import require_trace
from ...trace.trace import Trace
from ..deployment import Deployment
from .engine_layout import cache_layout, layouts_for

NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
STEPS = (2, 8, 32)  # retention intervals that are tried, in blocks
GAIN = 0.005  # of the prompt tokens: what another setting must gain to be named


class Sizes(TypedDict):
    """The sizes of a layout that its settings change."""

    block_size: int
    retention_interval: int | None


def sizes_of(layout: CacheLayout) -> Sizes:
    return {"block_size": layout.scheduler_block_size, "retention_interval": layout.retention_interval}


@dataclass(frozen=True)
class OtherLayout(Described):
    """The hits of another setting of the engine."""

    setting: str  # the option that chooses it
    layout: CacheLayout = field(metadata=column(spread={}, value=sizes_of))
    hit_tokens: int


@dataclass(frozen=True, repr=False)
class ReachableHits(DescribedResult):
    """Hit tokens of a trace in an engine's cache of a model, beside those that full attention could have."""

    engine: str
    capacity: int | None  # blocks; None = nothing is evicted
    prompt_tokens: int
    possible_hit_tokens: int  # of full attention, with nothing evicted
    hit_tokens: int
    prompts_below_a_block: int  # requests whose prompt is not longer than a block, so that it cannot hit itself
    layout: CacheLayout | None  # None = full attention
    others: tuple[OtherLayout, ...]

    def _headline(self) -> str:
        return f"{self.engine}, hit_tokens={self.hit_tokens:,}, possible_hit_tokens={self.possible_hit_tokens:,}"

    def _columns(self) -> Mapping[str, Any]:
        own = {"setting": "present", "hit_tokens": self.hit_tokens}
        return columns_of([own, *({"setting": other.setting, "hit_tokens": other.hit_tokens} for other in self.others)])

    @property
    def better(self) -> OtherLayout | None:
        """The setting with the most hits, if it gains at least half a point of the prompt tokens."""
        least = self.hit_tokens + max(GAIN * self.prompt_tokens, 1)
        best = max(self.others, key=lambda other: other.hit_tokens, default=None)
        return best if best is not None and best.hit_tokens >= least else None

    def __str__(self) -> str:
        """One sentence on the hits, and one on a better setting or on what no setting changes."""
        whole = max(self.prompt_tokens, 1)
        where = "With memory for all blocks" if self.capacity is None else f"At {self.capacity:,} blocks"
        size = f" (blocks of {self.layout.scheduler_block_size:,} tokens)" if self.layout else ""
        sentence = (
            f"{where}, {NAMES[self.engine]}'s cache of this model{size} hits {100 * self.hit_tokens / whole:.1f} % of "
            f"the prompt tokens; {100 * self.possible_hit_tokens / whole:.1f} % are possible."
        )
        if self.layout is None:
            return f"{sentence} All of its layers keep all tokens."
        if better := self.better:
            memory = "" if self.capacity else " Add --capacity to see this in the memory of your GPU."
            return f"{sentence} {better.setting} would hit {100 * better.hit_tokens / whole:.1f} %.{memory}"
        if self.prompts_below_a_block and self.hit_tokens == 0 < self.possible_hit_tokens:
            below = f"{self.prompts_below_a_block:,} prompts are not longer than one block"
            return f"{sentence} {below}: no setting helps them."
        tried = f" None of {len(self.others)} other settings that were tried would hit clearly more."
        return sentence + (tried if self.others else "")


def reachable_hits(
    trace: Trace,
    model: Deployment | Mapping[str, Any] | str | Path,
    engine: EngineName = "vllm",
    *,
    capacity: int | None = None,
) -> ReachableHits:
    """The hits that an engine's cache of a model has on a trace, of those that are possible, and better settings.

    Args:
        trace: The trace. Its blocks should be short: a partial last block hides where a prompt ends.
        model: A Deployment with one of these engines; or a name that `kvtrace models` lists, the path of a config.json,
            or its fields, on one GPU.
        engine: "vllm" or "sglang"; not used with a Deployment.
        capacity: Blocks of the engine's pool; None evicts nothing, so that more checkpoints always hit more.

    Raises:
        UsageError: The engine has no cache groups here, or the capacity does not hold a request.
        InputError: The config is not valid.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1 2 3", "0 1 4 5", "0 1 6 7", block_size=512)
    >>> found = reachable_hits(trace, "gpt-oss-20b")
    >>> found.hit_tokens, found.possible_hit_tokens, found.better.setting
    (1024, 2048, '--retention dense')
    """
    require_trace(trace)
    deployment = model if isinstance(model, Deployment) else Deployment(model, engine)
    engine = deployment.engine
    layout = layouts_for(deployment, [engine], trace.block_size).get(engine)
    if layout is None:
        cache_layout(deployment)  # refuses an engine without cache groups

    def hits(layout: CacheLayout | None, capacity: int | None) -> int:
        setting = Setting(capacity or 1, engine=engine, mode="token", layout=layout)
        return run(setting if capacity else without_eviction(setting, trace), trace).hits.hit_tokens

    tokens = trace.input_length
    return ReachableHits(
        engine, capacity, int(tokens.sum()), hits(None, None), hits(layout, capacity),
        0 if layout is None else int(np.count_nonzero(tokens <= layout.scheduler_block_size)), layout,
        tuple(
            OtherLayout(setting, other, hits(other, _as_much(capacity, layout, other)))
            for setting, other in _others(trace, deployment, layout)
        ) if layout else (),
    )  # fmt: skip


def without_eviction(setting: Setting, trace: Trace) -> Setting:
    """The setting with more blocks than a trace can ever take, partial ones of each group too; requests one by one."""
    layout = setting.layout
    each = trace.block_size if layout is None else layout.tokens_per_block
    if layout and layout.second_ratio:
        layout = replace(layout, second_ratio=max(layout.second_ratio, 1.0))  # states for all blocks, too
    blocks = 4 * (int(trace.prompt_blocks.sum() * trace.block_size / each) + len(trace) + 1)
    return replace(setting, capacity=blocks, layout=layout, schedule=SERIAL)


def _as_much(capacity: int | None, layout: CacheLayout, other: CacheLayout) -> int | None:
    """The blocks of another layout in the same memory."""
    return capacity and max(1, capacity * layout.block_bytes // other.block_bytes)


def _others(trace: Trace, deployment: Deployment, layout: CacheLayout) -> Iterator[tuple[str, CacheLayout]]:
    """Other retention intervals and block sizes of an engine, with the options that choose them."""
    size, longest = layout.scheduler_block_size, int(trace.input_length.max(initial=0))
    engine = deployment.engine
    if engine == "vllm" and any(group.kind in ("window", "state") for group in layout.groups):
        for interval in (None, *(size * step for step in STEPS if size * step <= longest)):
            named = "dense" if interval is None else interval
            yield f"--retention {named}", replace(layout, retention_interval=interval)
    for factor in (2, 4) if engine == "vllm" else ():  # SGLang's blocks are the trace's
        try:
            other = cache_layout(replace(deployment, block_size=trace.block_size * factor))
        except UsageError:  # the engine refuses it
            continue
        if other is not None and other.scheduler_block_size != size:
            yield f"--engine-block-size {trace.block_size * factor}", other
