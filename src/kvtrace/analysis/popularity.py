"""Which blocks are reused: how deep they lie, and how much of all reuse the most wanted ones have."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ..trace.trace import Trace
from .block_uses import Uses, uses

TOP_SHARES = (0.01, 0.1)
CHUNK = 1 << 20  # blocks that are counted together


@dataclass(frozen=True)
class Popularity:
    """How reuse is spread over blocks. A block's reuse is its uses but the first."""

    reuses: int
    reused_blocks: int  # blocks used more than once
    most_used: int  # uses of the most wanted block
    top_share: dict[float, float]  # share of blocks, the most wanted first -> their share of all reuse

    def to_dict(self) -> dict:
        """Keys as docs/analysis/analyze.md lists them."""
        return asdict(self) | {"top_share": {f"{share:g}": value for share, value in self.top_share.items()}}


def popularity(trace: Trace, found: Uses | None = None) -> Popularity:
    """How the reuse of a trace is spread over its blocks.

    >>> from kvtrace.trace.building import toy
    >>> popularity(toy("0 1", "0 2", "0 3")).top_share[0.1]
    1.0
    """
    blocks = histogram((found or uses(trace)).uses)
    blocks[0] = 0  # of outputs only
    times = np.flatnonzero(blocks)[::-1]  # the most used first
    blocks = blocks[times]
    reuses = int((blocks * (times - 1)).sum())
    return Popularity(
        reuses=reuses,
        reused_blocks=int(blocks[times > 1].sum()),
        most_used=int(times.max(initial=0)),
        top_share={share: _share(times - 1, blocks, share, reuses) for share in TOP_SHARES},
    )


def histogram(values: np.ndarray) -> np.ndarray:
    """How often each whole number from 0 up occurs: np.bincount in little memory.

    >>> histogram(np.array([0, 2, 2], dtype=np.int32))
    array([1, 0, 2])
    """
    counts = np.zeros(int(values.max(initial=0)) + 1, dtype=np.int64)
    for start in range(0, len(values), CHUNK):
        found = np.bincount(values[start : start + CHUNK])
        counts[: len(found)] += found
    return counts


def _share(reuses_each, blocks, share, reuses):
    """The part of all reuse that the most used blocks have; `blocks` have `reuses_each`, which falls."""
    room = max(1, round(share * int(blocks.sum())))
    before = np.cumsum(blocks) - blocks
    return float((reuses_each * np.clip(room - before, 0, blocks)).sum() / reuses) if reuses else 0.0


@dataclass(frozen=True)
class Depth:
    """The blocks at some depths, in blocks from the root: `low` up to `high`."""

    low: int
    high: int
    blocks: int  # distinct blocks there
    references: int  # uses of them
    shared_blocks: int  # used by more than one request

    def to_dict(self) -> dict:
        """The figures by name."""
        return asdict(self)


def sharing_by_depth(trace: Trace, found: Uses | None = None) -> list[Depth]:
    """Blocks and their sharing by depth, in bands whose width doubles: 1, 2, 3-4, 5-8, ...

    >>> from kvtrace.trace.building import toy
    >>> [(band.low, band.high, band.blocks, band.shared_blocks) for band in sharing_by_depth(toy("0 1", "0 2 3"))]
    [(1, 1, 1, 1), (2, 2, 2, 0), (3, 4, 1, 0)]
    """
    by_depth = (found or uses(trace)).by_depth.T.tolist()
    return [
        Depth(2 ** (band - 1) + 1 if band else 1, 2**band, blocks, references, shared)
        for band, (blocks, references, shared) in enumerate(by_depth)
        if blocks
    ]
