"""The hits of the offline optimum at many capacities: belady, one request at a time, over runs of blocks.

A run is what one request uses next of the blocks that another one used last, as the exact hit curve has them
(analysis/reuse.py). A trace has far fewer runs than blocks, and all capacities share them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.arrays import offsets_of
from ..analysis.reuse import Segments, find_segments
from ..trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Optimum:
    """The runs of a trace, sorted by the request that used them last.

    >>> from kvtrace.trace.building import toy
    >>> optimum = Optimum.of(toy("0 1", "2", "0 1"))
    >>> [optimum.hit_blocks(capacity).tolist() for capacity in (1, 2)]
    [[0, 0, 1], [0, 0, 2]]
    """

    next_row: np.ndarray  # run -> the request that uses its blocks next, int32
    blocks: np.ndarray  # run -> number of blocks, int32
    first: np.ndarray  # request -> its first run; the last entry is the number of runs

    @classmethod
    def of(cls, trace: Trace, segments: Segments | None = None) -> Optimum:
        """The runs of a trace; `segments` are those of `find_segments`, if they are known.

        Raises:
            InputError: The ids do not form a forest.
        """
        segments = segments or find_segments(trace)
        order = np.argsort(segments.last_row, kind="stable")
        return cls(
            segments.row[order].astype(np.int32),
            segments.blocks[order].astype(np.int32),
            offsets_of(np.bincount(segments.last_row, minlength=len(trace))),
        )

    def hit_blocks(self, capacity: int) -> np.ndarray:
        """Request -> hit blocks at a capacity in blocks, which counts idle blocks; int64."""
        from .core.pool import retained

        return retained(self.next_row, self.blocks, self.first, capacity).astype(np.int64)
