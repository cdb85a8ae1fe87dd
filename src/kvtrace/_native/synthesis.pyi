"""What Python sees of synthesis.py, which is compiled."""

import numpy as np
from numpy.typing import ArrayLike

def deal(
    values: ArrayLike,
    targets: ArrayLike,
    weights: ArrayLike,
    cell: ArrayLike,
    item: np.ndarray,
    members: ArrayLike,
    starts: ArrayLike,
    seed: int,
    swaps: int,
) -> None: ...
def contexts(starts: ArrayLike, first: ArrayLike, net: ArrayLike, item: np.ndarray, least: int) -> np.ndarray: ...
def arrivals(
    base: ArrayLike,
    completion: ArrayLike,
    delay: ArrayLike,
    service: ArrayLike,
    start: ArrayLike,
    join_offsets: ArrayLike,
    join: ArrayLike,
) -> np.ndarray: ...
def paths(
    offsets: ArrayLike, source: ArrayLike, keep: ArrayLike, root: ArrayLike, numbers: ArrayLike, distinct: int
) -> np.ndarray: ...
def core_paths(
    node: np.ndarray, own: np.ndarray, parent: np.ndarray, length: np.ndarray, first: np.ndarray, fresh: int
) -> tuple[np.ndarray, np.ndarray, int]: ...
def core_blocks(blocks: np.ndarray, offsets: np.ndarray, core: np.ndarray) -> np.ndarray: ...
def stretch(
    blocks: np.ndarray,
    offsets: np.ndarray,
    kept: np.ndarray,
    partial: np.ndarray,
    copy: np.ndarray,
    copies: int,
    end: np.ndarray,
    new_offsets: np.ndarray,
    keys: np.ndarray,
    firsts: np.ndarray,
    fresh: int,
) -> tuple[np.ndarray, int, int]: ...
def moved(keys: np.ndarray, firsts: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]: ...
