import numpy as np

UNSEEN: int

def verify(
    hash_ids: np.ndarray,
    offsets: np.ndarray,
    full_blocks: np.ndarray,
    output_ids: np.ndarray | None = None,
    output_offsets: np.ndarray | None = None,
) -> tuple[int, int, int]: ...
def verify_on(
    hash_ids: np.ndarray,
    offsets: np.ndarray,
    full_blocks: np.ndarray,
    output_ids: np.ndarray | None,
    output_offsets: np.ndarray | None,
    parent: np.ndarray,
    distinct: int,
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
