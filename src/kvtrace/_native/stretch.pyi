import numpy as np

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
