from collections.abc import Sequence

import numpy as np

def merge_ids(
    parts: Sequence[np.ndarray], counts: Sequence[int], offsets: Sequence[np.ndarray], order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]: ...
