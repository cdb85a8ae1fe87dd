"""Block popularity: uses by rank, and the share of all reuse that the most used blocks have."""

from __future__ import annotations

import numpy as np

from ...analysis.popularity import histogram
from .plot import POINTS, Axis, Panel, Plot, Series, Study


def plot(study: Study) -> Plot:
    """Rank and frequency of blocks, and reuse by the top x % of them.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1", "0 2"))).panels[0].series[0].y.tolist()
    [2, 1, 1]
    """
    trace = study.trace
    blocks = histogram(np.bincount(trace.hash_ids))  # number of uses -> blocks
    uses = np.repeat(np.arange(len(blocks))[:0:-1], blocks[:0:-1])  # most used first; blocks of outputs have 0
    rank = np.unique(np.geomspace(1, len(uses), POINTS).round().astype(np.int64))
    frequency = Panel(
        "Uses by rank",
        Axis("rank of the block", log=True, unit=""),
        Axis("uses", log=True, unit="uses"),
        [Series("uses", rank, uses[rank - 1])],
    )
    reuse, title = np.cumsum(uses - 1), "Share of reuse by the most used blocks"
    if not reuse[-1]:
        shares = Panel(title, missing="no block is used twice.")
    else:
        shares = Panel(
            title,
            Axis("most used blocks, share of all blocks", log=True, percent=True),
            Axis("share of all reuse", percent=True, limits=(0, 1)),
            [Series("reuse", rank / len(uses), reuse[rank - 1] / reuse[-1])],
        )
    explanation = "The concentration of reuse: on a few shared system prompts, or over many separate conversations."
    return Plot("Block popularity", explanation, [frequency, shares])
