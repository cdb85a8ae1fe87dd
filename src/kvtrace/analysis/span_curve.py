"""The hit curve of a span of a live stream: counts of its requests, and hits at any capacity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class SpanCurve:
    """Counts of the requests of a span, weighted sums where they decay, and hits of LRU caches of any capacity."""

    requests: float
    requests_with_blocks: float
    blocks: float
    tokens: float  # of prompts
    known_requests: float  # requests that state their cached tokens
    known_tokens: float  # prompt tokens of these
    known_cached: float  # ... that the service took from its cache
    known_possible: float  # ... that a cache that never evicts would hit
    steps: np.ndarray  # capacities, from 0
    sums: np.ndarray  # (3, step): hit blocks, hit tokens, sum over requests of hit blocks / blocks

    @property
    def wholes(self) -> np.ndarray:
        """Blocks, tokens and requests with blocks: what the three hit rates are shares of."""
        return np.array([self.blocks, self.tokens, self.requests_with_blocks])

    @property
    def possible(self) -> np.ndarray:
        """The hits of a cache that never evicts: blocks, tokens, and shares of requests."""
        return self.sums[:, -1]

    def hits(self, capacities: Iterable[int]) -> np.ndarray:
        """(3, capacity) float64: hit blocks, hit tokens, and the sum over requests of hit blocks / blocks.

        Between two steps, hits rise evenly.
        """
        capacity = np.asarray(list(capacities), np.float64)
        return np.array([np.interp(capacity, self.steps, one) for one in self.sums])

    def least_capacity(self, share: float) -> int | None:
        """The smallest capacity in blocks with this share of the possible hit tokens; None if there are no hits."""
        tokens, needed = self.sums[1], share * self.sums[1, -1] * (1 - 1e-12)  # a sum of floats may be lower
        if not needed:
            return None
        low, high = 1, int(self.steps[-1])
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if np.interp(middle, self.steps, tokens) >= needed else (middle + 1, high)
        return low
