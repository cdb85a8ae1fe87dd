"""What Python sees of growth.py, which is compiled."""

import numpy as np

KINDS: int
FULL_KINDS: int

def walk(
    hash_ids: np.ndarray, offsets: np.ndarray, unseen: np.ndarray, parent: np.ndarray | None, distinct: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...

CAPACITIES: int

class Growth:
    def __init__(
        self,
        deepest: int,
        horizon: int,
        block_size: int,
        capacities: np.ndarray,
        correction: np.ndarray,
        counts_partial: bool = True,
        effort: tuple[int, int, int, float] = (16, 24, 3, 0.0),
        wide: tuple[int, int, int, float] = (40, 192, 12, 0.0),
        grace: tuple[float, float] = (0, 0),
    ) -> None: ...
    @property
    def remembered(self) -> int: ...
    def grow(
        self, hits, shallow, deep, length, distance, fork, fork_distance, kind, tail, continues, window
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
