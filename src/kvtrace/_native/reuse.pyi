import numpy as np

def segments(
    hash_ids: np.ndarray, offsets: np.ndarray, distinct: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...

class Recency:
    def __init__(self, rows: int, distinct: int) -> None: ...
    def found(
        self, hash_ids: np.ndarray, offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
