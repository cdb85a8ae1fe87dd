from typing import Any

import numpy as np

WHOLE: int
SECONDS: int
TEXT: int
IDS: int
MICROSECONDS: int
NUMBERS: tuple[int, ...]
MAX_LISTS: int

def dump(fields: list[tuple[bytes, int, Any]], rows: int, first_id: int = 0) -> np.ndarray: ...
