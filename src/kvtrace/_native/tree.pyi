import numpy as np

def paths(
    node: np.ndarray, own: np.ndarray, parent: np.ndarray, length: np.ndarray, first: np.ndarray, fresh: int
) -> tuple[np.ndarray, np.ndarray, int]: ...
