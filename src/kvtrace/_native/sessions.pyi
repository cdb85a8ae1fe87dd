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
