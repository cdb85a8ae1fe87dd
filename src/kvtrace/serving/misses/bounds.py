"""Cures that no simulation of the trace can try: smaller blocks, and waiting for a prefix that is being computed."""

from __future__ import annotations

from collections.abc import Iterator

from .baseline import Baseline
from .cure import Cure


def smaller_blocks(baseline: Baseline) -> Iterator[Cure]:
    """What the engine rounds down of the blocks that the trace knows."""
    if not baseline.cost_of("rounding"):
        return
    size = baseline.explanation.simulation.trace.block_size
    advice = (
        "Use smaller blocks or chunks: engines round these tokens down, and compute the last token of each prompt. "
        f"What repeats inside a new block of {size:,} tokens is not in the trace, and comes on top."
    )
    yield baseline.bound("smaller_blocks", "rounding", advice)


def one_after_another(baseline: Baseline) -> Iterator[Cure]:
    """What requests compute while another one computes the same."""
    if not baseline.cost_of("in_flight"):
        return
    advice = (
        "Start requests with a common prefix one after another: another request of the instance was computing these "
        "tokens when they were looked up."
    )
    yield baseline.bound("one_after_another", "in_flight", advice)
