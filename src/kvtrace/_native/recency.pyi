"""What Python sees of recency.py, which is compiled."""

import numpy as np

def segments(
    hash_ids: np.ndarray, offsets: np.ndarray, distinct: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...

class RecencyList:
    def __init__(self, rows: int, distinct: int) -> None: ...
    def runs(
        self, hash_ids: np.ndarray, offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...

class LiveRecency:
    capacity: int
    room: int
    held: int
    sampled: int
    dropped: bool
    reach: int
    def __init__(self, capacity: int, *, slots: int | None = None, sample: float = 0.0, seed: int = 0) -> None: ...
    @property
    def memory_bytes(self) -> int: ...
    def runs(self, keys: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
    def mark(self, number: int) -> None: ...
    def used_since(self, number: int) -> tuple[int, bool]: ...

def threshold_of(sample: float) -> int: ...
def sampled_positions(keys: np.ndarray, sample: float, seed: int = 0) -> np.ndarray: ...
def add_runs(
    sums: np.ndarray,
    edges: np.ndarray,
    into: np.ndarray,
    weights: np.ndarray,
    runs: np.ndarray,
    blocks: np.ndarray,
    tokens: np.ndarray,
    block_size: int,
) -> None: ...
def add_sample(
    sums: np.ndarray,
    edges: np.ndarray,
    into: np.ndarray,
    weights: np.ndarray,
    runs: np.ndarray,
    skipped: np.ndarray,
    offsets: np.ndarray,
    depth: np.ndarray,
    anchors: np.ndarray,
    blocks: np.ndarray,
    tokens: np.ndarray,
    block_size: int,
    step: float,
) -> np.ndarray: ...
