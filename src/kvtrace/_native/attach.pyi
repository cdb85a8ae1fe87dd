import numpy as np

KINDS: int
FULL_KINDS: int

def walk(
    hash_ids: np.ndarray, offsets: np.ndarray, unseen: np.ndarray, parent: np.ndarray | None, distinct: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
