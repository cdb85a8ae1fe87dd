"""Cures that no simulation of the trace can try: smaller blocks, and waiting for a prefix that is being computed."""

from __future__ import annotations

from collections.abc import Iterator

from .baseline import Baseline
from .cure import Cure


def smaller_blocks(baseline: Baseline) -> Iterator[Cure]:
    """What the engine rounds down, which the trace does not show in smaller parts."""
    if not baseline.cost_of("rounding"):
        return
    size = baseline.explanation.simulation.trace.block_size
    advice = (
        f"Use blocks smaller than {size:,} tokens: the trace shows only whole ones. Engines always compute the last "
        "token of a prompt, which is part of this bound."
    )
    yield baseline.bound("smaller_blocks", "rounding", advice)


def one_after_another(baseline: Baseline) -> Iterator[Cure]:
    """What requests compute while another one computes the same."""
    if not baseline.cost_of("in_flight"):
        return
    advice = (
        "Start requests with a common prefix one after another: these tokens were being computed for another request "
        "of the instance."
    )
    yield baseline.bound("one_after_another", "in_flight", advice)
