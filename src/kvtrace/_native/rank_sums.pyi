import numpy as np

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
