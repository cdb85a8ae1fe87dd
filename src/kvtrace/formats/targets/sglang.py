"""SGLang's `bench_serving --dataset-name mooncake`: it preserves times, order and output lengths, not prompt lengths.

It turns each id into its number and 128 words for any block size, and ignores `input_length`. Prompts therefore share
the trace's prefixes but have other lengths. Only prompts made as text would have the right lengths.
"""

from __future__ import annotations

from pathlib import Path

from ..._base.errors import pasted
from ...trace.trace import Trace
from . import portable
from .portable import SIDECAR, check_name, write

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The portable rows, and the columns that SGLang ignores."""
    adapted, losses = portable.adapt(trace)
    return adapted, [*losses, "SGLang ignores input_length and the block size: each id becomes about 128 words."]


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to replay the file, one round for each request."""
    return [
        f"python -m sglang.bench_serving --backend sglang --dataset-name mooncake --dataset-path {pasted(path)} "
        f"--num-prompts {len(trace)} --mooncake-slowdown-factor 1 --mooncake-num-rounds 1"
    ]
