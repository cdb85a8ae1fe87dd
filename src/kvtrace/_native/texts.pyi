"""What Python sees of texts.py, which is compiled."""

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
def chat_texts(messages: list[Any]) -> tuple[list[int], list[str], list[str], list[int]]: ...
def joined_texts(texts: list[str]) -> tuple[list[int], bytes, bytes]: ...

class WordFinder:
    def __init__(self, in_words: np.ndarray) -> None: ...
    def find(self, data: bytes | memoryview) -> tuple[np.ndarray, int]: ...
