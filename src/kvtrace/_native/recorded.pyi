import numpy as np

def longest_prefixes(
    order: np.ndarray,
    bounds: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    hash_ids: np.ndarray,
    offsets: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]: ...
