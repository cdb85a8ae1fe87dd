"""The tokens of prompts in blocks that an earlier prompt has: what `anonymize` counts, in a cache that never evicts."""

from __future__ import annotations

import numpy as np

from ..._native.numbering import DigestIndex
from ..encoding import Batch
from ..logs.times import NO_TIME


class BlockHits:
    """Gathers the blocks of batches; 4 bytes a block reference and 40 a distinct block are in memory.

    Args:
        block_size: Tokens of a block.
    """

    def __init__(self, block_size: int):
        self._block_size, self._index = block_size, DigestIndex()
        self._numbers: list[np.ndarray] = []
        self._blocks: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._times: list[np.ndarray] = []

    def add(self, batch: Batch) -> None:
        """Add the prompts of a batch."""
        self._numbers.append(np.frombuffer(self._index.add(batch.digests).data, np.int32))
        self._blocks.append(batch.prompts)
        self._lengths.append(batch.input_length)
        self._times.append(batch.time_ns)

    def tokens(self) -> tuple[int, int]:
        """The tokens of all prompts, and those in their leading blocks that an earlier prompt has."""
        lengths, times = _joined(self._lengths), _joined(self._times)
        order = range(len(times)) if (times == NO_TIME).any() else np.argsort(times, kind="stable").tolist()
        rows = np.split(_joined(self._numbers), np.cumsum(_joined(self._blocks))[:-1])
        is_resident = np.zeros(1 + max((int(row.max()) for row in rows if len(row)), default=0), dtype=bool)
        hit = 0
        for row in order:
            resident = is_resident[rows[row]]
            leading = len(resident) if resident.all() else int(np.argmin(resident))
            hit += min(leading * self._block_size, int(lengths[row]))
            is_resident[rows[row]] = True
        return int(lengths.sum()), hit


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])
