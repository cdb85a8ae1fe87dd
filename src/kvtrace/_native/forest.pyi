import numpy as np

UNSEEN: int

def verify(
    hash_ids: np.ndarray,
    offsets: np.ndarray,
    full_blocks: np.ndarray,
    output_ids: np.ndarray | None = None,
    output_offsets: np.ndarray | None = None,
    parent: np.ndarray | None = None,
    distinct: int = 0,
) -> tuple[int, int, int]: ...
def parents(
    hash_ids: np.ndarray,
    offsets: np.ndarray,
    full_blocks: np.ndarray,
    output_ids: np.ndarray | None,
    output_offsets: np.ndarray | None,
    distinct: int,
) -> np.ndarray: ...
def depths(parent: np.ndarray) -> np.ndarray: ...
def runs(parent: np.ndarray, visits: np.ndarray) -> np.ndarray: ...
def chain(
    hash_ids: np.ndarray,
    offsets: np.ndarray,
    full_blocks: np.ndarray,
    output_ids: np.ndarray | None,
    output_offsets: np.ndarray | None,
    distinct: int,
) -> tuple[np.ndarray, np.ndarray | None]: ...
