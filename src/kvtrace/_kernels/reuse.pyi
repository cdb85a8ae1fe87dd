import numpy as np

def segments(
    hash_ids: np.ndarray, offsets: np.ndarray, distinct: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
