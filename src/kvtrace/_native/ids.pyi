import numpy as np

MAX_DISTINCT: int

def renumber(ids: np.ndarray) -> tuple[np.ndarray, int]: ...
def is_numbered(ids: np.ndarray) -> bool: ...
def number_rows(
    found: np.ndarray,
    offsets: np.ndarray,
    order: np.ndarray,
    output_found: np.ndarray | None = None,
    output_offsets: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray | None]: ...

class DigestIndex:
    distinct: int
    def add(self, digests: np.ndarray) -> np.ndarray: ...
    def fresh(self, count: int) -> np.ndarray: ...
