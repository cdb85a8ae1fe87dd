"""Hit rate by block size: the same requests in blocks that are 2, 4, 8, ... times as large."""

from __future__ import annotations

import numpy as np

from ...analysis.block_sizes import each_block_size
from .plot import Axis, Panel, Plot, Series, Study, highest, rate_axis

MAX_DOUBLINGS = 10


def plot(study: Study) -> Plot:
    """Block and token hit rates at the trace's block size and its multiples, without eviction.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1 2 3", "0 1 2 3"))).panels[0].series[0].x.tolist()
    [1, 2, 4]
    """
    title, trace = "Block and token hit rate", study.trace
    longest = int(trace.prompt_blocks.max())
    if longest < 2:
        return _plot(Panel(title, missing="no prompt is longer than one block."))
    factors = [2**power for power in range(MAX_DOUBLINGS + 1) if 2**power < 2 * longest]
    sizes, blocks, tokens = [], [], []
    for folded in each_block_size(trace, factors):
        if not folded.blocks:  # partial blocks are dropped, and no prompt fills a block of this size
            break
        sizes.append(folded.block_size)
        blocks.append(folded.hits.block_hit_rate)
        tokens.append(folded.hits.token_hit_rate)
    at = np.array(sizes)
    series = [
        Series("block hit rate", at, np.array(blocks), 0, "dots"),
        Series("token hit rate", at, np.array(tokens), 1, "dots"),
    ]
    ticks = {float(size): f"{size // 1024}k" if size % 1024 == 0 else f"{size}" for size in sizes}
    x = Axis("tokens per block", log=True, ticks=ticks, unit="tokens per block")
    return _plot(Panel(title, x, rate_axis("hit rate", highest(series)), series))


def _plot(panel):
    explanation = "The cost of larger blocks: requests share a prefix in whole blocks only. Without eviction."
    return Plot("Hit rate by block size", explanation, [panel])
