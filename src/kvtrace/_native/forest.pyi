"""What Python sees of forest.py, which is compiled."""

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
def preorder(parent: np.ndarray) -> np.ndarray: ...
def shared_with_earlier(parent: np.ndarray, tip: np.ndarray, depth: np.ndarray, group: np.ndarray) -> np.ndarray: ...

BANDS: int

def walk(hash_ids: np.ndarray, offsets: np.ndarray, distinct: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def walk_on(hash_ids: np.ndarray, offsets: np.ndarray, uses: np.ndarray, bands: np.ndarray) -> np.ndarray: ...
def repeated(hash_ids: np.ndarray, offsets: np.ndarray, uses: np.ndarray) -> np.ndarray: ...
def longest_prefixes(
    order: np.ndarray,
    bounds: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    hash_ids: np.ndarray,
    offsets: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]: ...
