"""Cut texts into chunks, so that texts that share much of their content share most of their chunks.

A chunk is a line; a long line is cut after punctuation. A change in one place alters the chunks of that place only, so
an insertion does not shift the others. Each chunk has two numbers: its own, and its key, which it shares with chunks
that differ in white space, letter case or the form of characters only.
"""

from __future__ import annotations

import re
import unicodedata
from array import array

import numpy as np

LINES = re.compile(r"[^\n]*\n(?:[ \t\r]*\n)*|[^\n]+")  # a line, with the blank lines after it
PARTS = re.compile(r"[^\s,;:.!?}\]]*[\s,;:.!?}\]]+|[^\s,;:.!?}\]]+")  # words with the punctuation after them
LONG = 200  # characters; a longer line is cut
SHORTEST, LONGEST = 40, 160  # characters of the chunks of a long line
BLANK = 0  # the key of chunks that hold white space only
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-",
                       "\u00ad": None, "\ufeff": None, "\u200b": None})  # fmt: skip


class ChunkTable:
    """The distinct chunks of a log, by number. It holds text: it is never printed, and cleared after use."""

    __slots__ = ("_cut", "_key_of", "_keys", "_number", "characters", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []  # number -> text
        self.characters = 0
        self._keys = array("i")  # number -> key
        self._number: dict[str, int] = {}
        self._key_of: dict[str, int] = {"": BLANK}
        self._cut: dict[str, array[int]] = {}  # text -> its chunks

    def __repr__(self) -> str:
        return f"ChunkTable({len(self.texts)} chunks)"

    def cut(self, text: str) -> array[int]:
        """The numbers of the chunks of a text; chunks end to end are the text.

        >>> table = ChunkTable()
        >>> table.cut("one\\ntwo\\n").tolist(), table.cut("zero\\ntwo\\n").tolist()
        ([0, 1], [2, 1])
        """
        known = self._cut.get(text)
        if known is None:
            known = self._cut[text] = array("i", [self._number_of(chunk) for chunk in chunks_of(text)])
        return known

    def clear(self) -> None:
        """Forget all texts."""
        for kept in (self.texts, self._number, self._key_of, self._cut):
            kept.clear()

    def keys(self) -> np.ndarray:
        """Chunk -> key."""
        return np.array(self._keys, np.int32)

    def _number_of(self, chunk: str) -> int:
        number = self._number.get(chunk)
        if number is None:
            number = self._number[chunk] = len(self.texts)
            self.texts.append(chunk)
            self.characters += len(chunk)
            self._keys.append(self._key_of.setdefault(plain(chunk), len(self._key_of)))
        return number


def chunks_of(text: str) -> list[str]:
    """The chunks of a text."""
    chunks = []
    for line in LINES.findall(text):
        if len(line) <= LONG:
            chunks.append(line)
        else:
            chunks += _parts_of(line)
    return chunks


def _parts_of(line: str) -> list[str]:
    """The chunks of a long line: they end after punctuation, so that the same words give the same chunks."""
    chunks, start, end = [], 0, 0
    for part in PARTS.finditer(line):
        end = part.end()
        ends = (
            end - start >= SHORTEST and part.group().rstrip()[-1:] in ",;:.!?}]" and not line[end : end + 1].isalnum()
        )
        while end - start > LONGEST:
            chunks.append(line[start : start + LONGEST])
            start += LONGEST
        if ends and end > start:
            chunks.append(line[start:end])
            start = end
    return [*chunks, line[start:]] if start < len(line) else chunks


def plain(text: str) -> str:
    """A text without white space, with plain letters in lower case.

    >>> plain("Be  brief.\\r\\n") == plain("be brief.")
    True
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(PLAIN)
    return "".join(text.split()).casefold()
