"""Align two prompts, cut into chunks: the chunks that both have in the same order, and the spans in which they differ.

A chunk is a line; a long line is cut after punctuation. A change in one place alters the chunks of that place only, so
an insertion does not shift the others. Each chunk has two numbers: its own, and its key, which it shares with chunks
that differ in white space, letter case or the form of characters only.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from difflib import SequenceMatcher
from typing import NamedTuple

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
        numbers = self._cut.get(text)
        if numbers is None:
            numbers = self._cut[text] = array("i", [self._number_of(chunk) for chunk in chunks_of(text)])
        return numbers

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


LARGE = 1 << 25  # cells of a comparison; above, frequent chunks are left out of it (difflib's autojunk)


class Span(NamedTuple):
    """A place where two prompts differ, and the chunks after it that they share again."""

    a0: int  # the earlier prompt's chunks a0:a1
    a1: int
    b0: int  # became the later prompt's chunks b0:b1
    b1: int
    end: int  # chunks b1:end of the later prompt are in the earlier one, too


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """The number of leading chunks that two prompts share."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def spans(a: np.ndarray, b: np.ndarray, keys: np.ndarray) -> list[Span]:
    """The spans in which two prompts differ, in order.

    Args:
        a, b: chunks of the earlier and the later prompt.
        keys: chunk -> key; chunks with equal keys are aligned, and differ in white space only.

    >>> keys = np.arange(9)
    >>> spans(np.array([1, 2, 3, 4, 5]), np.array([1, 7, 3, 4, 5, 6]), keys)
    [Span(a0=1, a1=2, b0=1, b1=2, end=5), Span(a0=5, a1=5, b0=5, b1=6, end=6)]
    """
    start = common_prefix(a, b)
    differing: list[Span] = []
    at_a = at_b = start
    for i, j, size in [*_blocks(a, b, keys, start), (len(a), len(b), 0)]:
        same = a[i : i + size] == b[j : j + size]
        if at_a < i or at_b < j:
            differing.append(Span(at_a, i, at_b, j, j))
        for step in np.flatnonzero(~same).tolist():  # equal but for white space
            _extend_last(differing, j + step)
            differing.append(Span(i + step, i + step + 1, j + step, j + step + 1, j + step + 1))
        _extend_last(differing, j + size)
        at_a, at_b = i + size, j + size
    return differing


def _extend_last(differing: list[Span], end: int) -> None:
    """Let the chunks after the last span, which both prompts have, reach `end`."""
    if differing and differing[-1].end < end:
        differing[-1] = differing[-1]._replace(end=end)


def _blocks(a: np.ndarray, b: np.ndarray, keys: np.ndarray, start: int) -> list[tuple[int, int, int]]:
    """(place in a, place in b, length) of runs of chunks with equal keys, after the common prefix."""
    places_a, places_b = _worded(a, keys, start), _worded(b, keys, start)
    keys_a, keys_b = keys[a[places_a]], keys[b[places_b]]
    size = min(len(keys_a), len(keys_b))
    differ = np.flatnonzero(keys_a[::-1][:size] != keys_b[::-1][:size])
    tail = int(differ[0]) if len(differ) else size  # the common suffix
    head_a, head_b = len(keys_a) - tail, len(keys_b) - tail
    matcher = SequenceMatcher(
        None, keys_a[:head_a].tolist(), keys_b[:head_b].tolist(), autojunk=head_a * head_b > LARGE
    )
    pairs = [(i + step, j + step) for i, j, n in matcher.get_matching_blocks() for step in range(n)]
    pairs += [(head_a + step, head_b + step) for step in range(tail)]
    blocks: list[tuple[int, int, int]] = []
    for i, j in pairs:
        at_a, at_b = int(places_a[i]), int(places_b[j])
        if blocks and blocks[-1][0] + blocks[-1][2] == at_a and blocks[-1][1] + blocks[-1][2] == at_b:
            blocks[-1] = (blocks[-1][0], blocks[-1][1], blocks[-1][2] + 1)
        else:
            blocks.append((at_a, at_b, 1))
    return blocks


def _worded(chunks: np.ndarray, keys: np.ndarray, start: int) -> np.ndarray:
    """The places of the chunks from `start` that hold more than white space."""
    return start + np.flatnonzero(keys[chunks[start:]] != BLANK)
