"""The shape of a text that differs between two prompts: a date, an id, white space, moved words, or other words.

Only the shape leaves this module, and numbers that stand for values; no text does.
"""

from __future__ import annotations

import calendar
import re
from collections import Counter
from difflib import SequenceMatcher
from typing import NamedTuple

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
