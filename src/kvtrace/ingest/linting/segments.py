"""The segments in which two prompts differ, and the shape of each: a date, an id, white space, moved words, words.

Between them are the chunks that both prompts have in the same order. A chunk is a line; a long line is cut after
punctuation. A change in one place alters the chunks of that place only, so an insertion does not shift the others. Each
chunk has two numbers: its own, and its key, which it shares with chunks that differ in white space, letter case or the
form of characters only.

The shape of a text is a date, an id, white space, moved words, or other words. Only the shape leaves this module, and
numbers that stand for values; no text does.
"""

from __future__ import annotations

import calendar
import re
import unicodedata
from array import array
from collections import Counter
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


DATE, ID, CODE, NUMBER = "date", "id", "code", "number"
SPACE, ADDRESS, WORDS, FREE = "space", "address", "words", "free"

MAX_WORDS = 40  # of a changed value; more is free text, such as a question
AROUND = 60  # characters beside a change that tell its shape
MOST_CHANGED = 0.6  # share of the words that may change in a text of more than MAX_WORDS words

_MONTH = "|".join([*calendar.month_name[1:], *calendar.month_abbr[1:], "sept"])
_DAY = "|".join([*calendar.day_name, *calendar.day_abbr, "tues", "thurs"])
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?)?(?:\s?(?:Z\b|UTC|GMT|[+-]\d{2}:?\d{2}))?"
DATES = re.compile(
    rf"""(?<![\w.])(?:
      \d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:(?:T|\s){_CLOCK})?
    | \d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d{{2}})(?:\s{_CLOCK})?
    | (?:(?:{_DAY})\b\.?,?\s+)?(?:{_MONTH})\b\.?\s+\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s+\d{{4}}\b)?
    | (?:(?:{_DAY})\b\.?,?\s+)?\d{{1,2}}(?:st|nd|rd|th)?\.?\s+(?:{_MONTH})\b\.?(?:,?\s+\d{{4}}\b)?
    | (?:{_MONTH})\b\.?,?\s+\d{{4}}\b
    | \d{{4}}年\d{{1,2}}月(?:\d{{1,2}}日)?
    | (?:19|20)\d{{2}}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:T?[0-2]\d[0-5]\d[0-5]\d(?:\.\d+)?Z?)?(?!\w)
    | (?:1[5-9]|20)\d{{8}}(?:\d{{3}}|\d{{6}}|\d{{9}})?(?:\.\d+)?(?!\w)
    | {_CLOCK}
    | \d{{1,2}}\s?[ap]\.?m\b\.?
    | (?:{_DAY})\b
    | (?:{_MONTH})\b
    | (?:19|20)\d{{2}}\b
    )""",
    re.IGNORECASE | re.VERBOSE,
)
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
HEX = re.compile(r"(?:0x)?(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}", re.IGNORECASE)
RANDOM = re.compile(r"(?=\w*\d)(?=\w*[a-z])(?=\w*[A-Z])[\w-]{12,}")  # digits, small and capital letters: 3Kx9fLq0Zr7T
MIXED = re.compile(r"(?=[\w\-+/=]*\d)(?=[\w\-+/=]*[A-Za-z])[\w\-+/=]{6,}")  # letters and digits: req_00f3Kx, A-10293
DIGITS = re.compile(r"#?\d[\d,.]*")
ADDRESSES = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}\b|[\w.+-]+@[\w-]+\.[\w.]+",
                       re.IGNORECASE)  # fmt: skip
TOKENS = re.compile(r"\w+|\s+|[^\w\s]")
ID_LABEL = re.compile(
    r"(?:\b(?:id|uuid|guid|request|req|session|sess|conversation|conv|chat|thread|ticket|case|run|trace|span|turn|counter"
    r"|seq|sequence|number|no|nr|num|nonce|seed|token|call|job|batch|build|rev|revision|order)\b\W{0,3}|#)$",
    re.IGNORECASE,
)
NAME_LABEL = re.compile(
    r"\b(?:user|username|name|customer|client|account|tenant|org|organi[sz]ation|company|team|plan|tier|role|locale"
    r"|language|lang|time ?zone|region|country|city|location|ip|host|hostname|device|agent|browser|email|phone|caller"
    r"|employee|member|owner|author|assignee|agent)(?:[ _-]?(?:name|id|address))?\s?[:=]\s*$",
    re.IGNORECASE,
)


class Change(NamedTuple):
    """A place inside a span where two texts differ."""

    shape: str
    is_labelled: bool  # a label stands before it, such as a name and a colon
    words: int  # that changed
    values: tuple[int, int]  # numbers that stand for the earlier and the later value


def changes(before: str, after: str, lead: str = "", trail: str = "") -> list[Change]:
    """The places in which two texts differ, each with its shape.

    Args:
        lead, trail: the text in front of both, and behind them.

    >>> [change.shape for change in changes("On 2031-05-02 for ab12cd34ef", "On 2031-05-03 for 99f0cd34ee")]
    ['date', 'id']
    """
    a, b = TOKENS.findall(before), TOKENS.findall(after)
    if max(_words(a), _words(b)) > 50 * MAX_WORDS:
        return [_free(before, after)]
    where_a, where_b = _places(a), _places(b)
    spans: list[tuple[int, int, int, int]] = []  # characters
    for name, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if name != "equal":
            place = where_a[a0], where_a[a1], where_b[b0], where_b[b1]
            if spans and _is_joined(before[spans[-1][1] : place[0]]):
                first = spans.pop()
                place = first[0], place[1], first[2], place[3]
            spans.append(place)
    total = max(_words(a), _words(b))
    changed = max(
        sum(_words(TOKENS.findall(before[a0:a1])) for a0, a1, _, _ in spans),
        sum(_words(TOKENS.findall(after[b0:b1])) for _, _, b0, b1 in spans),
    )
    if changed > MAX_WORDS or (total > MAX_WORDS and changed > MOST_CHANGED * total):
        return [_free(before, after)]
    lead, trail = lead[-AROUND:], trail[:AROUND]
    return _joined([_change(lead, before, after, trail, place) for place in spans])


def _change(lead, before, after, trail, place) -> Change:
    """The change at one place: characters a0:a1 became b0:b1."""
    a0, a1, b0, b1 = place
    size = len(lead)
    left = shape_of(f"{lead}{before}{trail}", size + a0, size + a1)
    right = shape_of(f"{lead}{after}{trail}", size + b0, size + b1)
    shape = _joint(left, right)
    label = ID_LABEL if shape in (ID, CODE, NUMBER) else NAME_LABEL
    front = f"{lead}{after[:b0]}"
    words = max(_words(TOKENS.findall(before[a0:a1])), _words(TOKENS.findall(after[b0:b1])))
    return Change(shape, bool(label.search(front[-AROUND:])), words, (hash(before[a0:a1]), hash(after[b0:b1])))


def _joined(unjoined: list[Change]) -> list[Change]:
    """The changes; neighbours of one shape are one."""
    result: list[Change] = []
    for change in unjoined:
        if result and result[-1].shape == change.shape:
            last = result.pop()
            values = (hash((last.values[0], change.values[0])), hash((last.values[1], change.values[1])))
            change = Change(change.shape, last.is_labelled or change.is_labelled, last.words + change.words, values)
        result.append(change)
    return result


def shape_of(text: str, start: int, end: int) -> str:
    """The shape of the characters start:end of a text.

    >>> shape_of("at 10:15 today", 6, 8), shape_of("user 7", 5, 6), shape_of("a  b", 1, 2), shape_of("an apple", 3, 8)
    ('date', 'number', 'space', 'words')
    """
    value = text[start:end]
    if not value.strip():
        return SPACE
    if value.count("\n") > 1 or len(TOKENS.findall(value)) > 12:
        return _shape_of_block(value)
    lead = max(0, start - AROUND)
    window = text[lead : end + AROUND]
    for shape, pattern in ((ID, UUID), (ADDRESS, ADDRESSES), (DATE, DATES)):
        if _covers(pattern, window, start - lead, end - lead):
            return shape
    word = _word_around(text, start, end)
    if HEX.fullmatch(word) or RANDOM.fullmatch(word):
        return ID
    if MIXED.fullmatch(word):
        return CODE
    if DIGITS.fullmatch(value.strip()):
        return NUMBER
    return _shape_of_block(value) if " " in value.strip() else WORDS


def _covers(pattern, window, start, end):
    """Whether matches of the pattern cover the words and digits of window[start:end]."""
    rest = list(window[start:end])
    for match in pattern.finditer(window):
        for place in range(max(start, match.start()), min(end, match.end())):
            rest[place - start] = " "
    return not any(character.isalnum() for character in rest)


def _shape_of_block(value):
    """The shape of a longer value: what is left of it without dates and ids decides."""
    for shape, patterns in ((DATE, (DATES,)), (ID, (UUID, HEX, MIXED))):
        rest = value
        for pattern in patterns:
            rest = pattern.sub(" ", rest)
        if rest != value and len(re.findall(r"[^\W\d_]+", rest)) <= 6 and not NAME_LABEL.search(rest.rstrip()):
            return shape
    return ADDRESS if ADDRESSES.search(value) else WORDS


def _word_around(text, start, end):
    """The characters and the word that they are part of."""
    while start > 0 and (text[start - 1].isalnum() or text[start - 1] in "_-"):
        start -= 1
    while end < len(text) and (text[end].isalnum() or text[end] in "_-"):
        end += 1
    return text[start:end].strip("-_")


def _joint(left, right):
    """The shape of a change between two shapes; an insertion has the shape of what it inserts."""
    if left in (SPACE, right):
        return right
    if right == SPACE:
        return left
    for shape in (ADDRESS, DATE):
        if shape in (left, right):
            return shape
    numbers = [shape for shape in (ID, CODE, NUMBER) if shape in (left, right)]
    return numbers[0] if len(numbers) == 2 else WORDS


def _free(before, after):
    return Change(FREE, False, 0, (hash(before), hash(after)))


def _words(tokens):
    return sum(token[0].isalnum() for token in tokens)


def _places(tokens):
    places = [0]
    for token in tokens:
        places.append(places[-1] + len(token))
    return places


def _is_joined(gap):
    """Whether the text between two changes is so short that they are one: punctuation, or one blank."""
    return len(gap) <= 3 and not any(character.isalnum() for character in gap) and "\n" not in gap


def words_of(text: str) -> Counter[str]:
    """How often each word is in a text.

    >>> words_of("a b, a")
    Counter({'a': 2, 'b': 1})
    """
    return Counter(re.findall(r"\w+", text))
