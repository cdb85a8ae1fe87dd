import numpy as np

SHORTEST: int

def find_lists(
    data: bytes | bytearray, size: int, room: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def number_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
def number_rows(
    numbers: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    first_keys: np.ndarray,
    keys: np.ndarray,
    distinct: int,
) -> np.ndarray: ...
