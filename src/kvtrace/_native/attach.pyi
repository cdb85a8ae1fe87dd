import numpy as np

KINDS: int
FULL_KINDS: int

def walk(
    hash_ids: np.ndarray, offsets: np.ndarray, unseen: np.ndarray, parent: np.ndarray | None, distinct: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...

class Growth:
    def __init__(self, deepest: int, horizon: int, block_size: int) -> None: ...
    @property
    def remembered(self) -> int: ...
    def grow(
        self, hits, shallow, deep, length, age, kind, tail, continues
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
