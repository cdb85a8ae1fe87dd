"""Texts: trace rows printed as JSON, the messages of a chat, and words found in bytes."""

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.unicode import PyUnicode_DATA, PyUnicode_KIND
from cython.cimports.libc.string import memcpy

# Prints trace rows as JSON, with the same bytes as json.dumps. Twin: tests/reference/rows_out.py.

# kinds of columns
WHOLE = 0  # int64
SECONDS = 1  # int64 milliseconds, printed as seconds: 61114 is 61.114
TEXT = 2  # JSON texts: uint8, and offsets that divide them into rows
IDS = 3  # int64, and offsets that divide them into lists
MICROSECONDS = 4  # int64, printed as milliseconds: 1500 is 1.5, and 2000 is 2
NUMBERS = (WHOLE, SECONDS, MICROSECONDS)
MAX_LISTS = 2


def dump(fields, rows: int, first_id: int = 0):
    """The rows as lines of JSON: uint8.

    `fields` are (before, kind, values): the bytes before each value of the field, its kind, and the values of the rows.
    The closing brace is added. `first_id` is added to each id.

    >>> ids = np.array([0, 1, 2]), np.array([0, 2, 3])
    >>> fields = [(b'{"timestamp": ', SECONDS, np.array([0, 61114])), (b', "hash_ids": ', IDS, ids)]
    >>> bytes(dump(fields, 2))
    b'{"timestamp": 0.0, "hash_ids": [0, 1]}\\n{"timestamp": 61.114, "hash_ids": [2]}\\n'
    """
    for _, kind, values in fields:
        _check(kind, values, rows)
    lists = [values for _, kind, values in fields if kind == IDS]
    if len(lists) > MAX_LISTS:
        raise ValueError(f"at most {MAX_LISTS} fields can be lists of ids")
    lists += [(np.empty(0, np.int64), np.zeros(rows + 1, np.int64))] * (MAX_LISTS - len(lists))
    befores = [before for before, _, _ in fields]
    out = np.empty(_bound(fields, rows, first_id), dtype=np.uint8)
    end = _dump(
        np.array([kind for _, kind, _ in fields], dtype=np.int32), np.frombuffer(b"".join(befores), dtype=np.uint8),
        np.cumsum([0] + [len(before) for before in befores]), _wholes(fields, rows), *_texts(fields, rows),
        *(np.ascontiguousarray(array, dtype=np.int64) for pair in lists for array in pair), rows, first_id, out,
    )  # fmt: skip
    return out[:end]


def _check(kind, values, rows):
    """Check a field's shape: the compiled loop has no bounds checks."""
    if kind in NUMBERS:
        if len(values) != rows:
            raise IndexError(f"a field does not have {rows} rows")
        return
    items, offsets = values
    if len(offsets) != rows + 1 or offsets[0] < 0 or offsets[rows] > len(items) or (np.diff(offsets) < 0).any():
        raise IndexError("a field's offsets do not match the rows or its values")


def _bound(fields, rows, first_id):
    """Upper bound of the bytes of all rows."""
    bound = (2 + 2 * MAX_LISTS) * rows + 8  # closing braces, ends of lines, brackets; the last id is written as 8 bytes
    for before, kind, values in fields:
        bound += len(before) * rows
        if kind in NUMBERS:
            bound += 21 * rows
        elif kind == TEXT:
            bound += int(values[1][rows] - values[1][0])
        elif len(ids := _cut(values, rows)):
            ends = [int(end) + first_id for end in (ids.min(), ids.max())]
            if not -(2**63) <= ends[0] <= ends[1] < 2**63:
                raise OverflowError("an id plus first_id exceeds 64 bits")
            widest = max(len(str(end)) for end in ends)
            bound += (widest + 2) * len(ids)
    return bound


def _cut(values, rows):
    """The values that the offsets cover."""
    return values[0][values[1][0] : values[1][rows]]


def _wholes(fields, rows):
    """field -> row -> its integer; 0 for fields of another kind."""
    wholes = np.zeros((len(fields), rows), dtype=np.int64)
    for place, (_, kind, values) in enumerate(fields):
        if kind in NUMBERS:
            wholes[place] = values
    return wholes


def _texts(fields, rows):
    """All texts end to end, and field -> row -> start of its text."""
    parts, offsets, length = [np.empty(0, np.uint8)], np.zeros((len(fields), rows + 1), dtype=np.int64), 0
    for place, (_, kind, values) in enumerate(fields):
        if kind == TEXT:
            text = _cut(values, rows)
            parts.append(text)
            offsets[place] = values[1] - values[1][0] + length
            length += len(text)
    return np.concatenate(parts), offsets


def _dump(kinds: cython.const[cython.int][::1], keys: cython.const[cython.uchar][::1],
          key_offsets: cython.const[cython.longlong][::1], wholes: cython.const[cython.longlong][:, ::1],
          text: cython.const[cython.uchar][::1], text_offsets: cython.const[cython.longlong][:, ::1],
          ids: cython.const[cython.longlong][::1], offsets: cython.const[cython.longlong][::1],
          more_ids: cython.const[cython.longlong][::1], more_offsets: cython.const[cython.longlong][::1],
          rows: cython.Py_ssize_t, first_id: cython.longlong,
          out: cython.uchar[::1]):  # fmt: skip
    at: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    field: cython.Py_ssize_t
    lists: cython.int
    with cython.nogil:
        for row in range(rows):
            lists = 0
            for field in range(kinds.shape[0]):
                at = _put(out, at, keys, key_offsets[field], key_offsets[field + 1])
                if kinds[field] == _WHOLE:
                    at = _put_whole(out, at, wholes[field, row])
                elif kinds[field] == _SECONDS:
                    at = _put_seconds(out, at, wholes[field, row])
                elif kinds[field] == _MICROSECONDS:
                    at = _put_milliseconds(out, at, wholes[field, row])
                elif kinds[field] == _TEXT:
                    at = _put(out, at, text, text_offsets[field, row], text_offsets[field, row + 1])
                elif lists == 0:
                    at = _put_ids(out, at, ids, offsets[row], offsets[row + 1], first_id)
                    lists = 1
                else:
                    at = _put_ids(out, at, more_ids, more_offsets[row], more_offsets[row + 1], first_id)
            out[at] = 125  # }
            out[at + 1] = 10  # the end of the line
            at += 2
    return at


def _put(out, at, text, i, end):
    while i < end:
        out[at] = text[i]
        at += 1
        i += 1
    return at


def _put_ids(out, at, ids, i, end, first_id):
    value: cython.longlong
    before: cython.longlong = -1  # the last value, if `text` holds its digits
    text: cython.ulonglong = 0  # at most 8 digits, the first one in the lowest byte
    length: cython.int = 0
    j: cython.int
    out[at] = 91  # [
    at += 1
    while i < end:
        value = ids[i] + first_id
        if not 0 <= value < 100_000_000:
            at = _put_whole(out, at, value)
            before = -1
        else:
            if before >= 0 and value == before + 1 and text >> (8 * length - 8) & 255 < 57:  # the last digit was no 9
                text += cython.cast(cython.ulonglong, 1) << (8 * length - 8)
            else:
                text = _text(value)
                length = _digits(value)
            for j in range(8):  # compilers turn this into one store; what exceeds the digits is written over
                out[at + j] = cython.cast(cython.uchar, text >> (8 * j) & 255)
            at += length
            before = value
        i += 1
        if i < end:
            out[at] = 44  # a comma and a space
            out[at + 1] = 32
            at += 2
    out[at] = 93  # ]
    return at + 1


def _text(value):
    """The digits of a number below 10^8, the first one in the lowest byte."""
    text: cython.ulonglong = 0
    while value >= 10:
        text = text << 8 | (48 + value % 10)
        value //= 10
    return text << 8 | (48 + value)


def _digits(value):
    """The number of decimal digits of a number below 10^8."""
    return (
        1 + (value >= 10) + (value >= 100) + (value >= 1000) + (value >= 10_000) + (value >= 100_000)
        + (value >= 1_000_000) + (value >= 10_000_000)
    )  # fmt: skip


def _put_whole(out, at, value):
    if value < 0:
        out[at] = 45  # a minus
        at += 1
        return _put_digits(out, at, cython.cast(cython.ulonglong, -(value + 1)) + 1)
    return _put_digits(out, at, cython.cast(cython.ulonglong, value))


def _put_digits(out, at, value):
    end: cython.Py_ssize_t = at + 1
    i: cython.Py_ssize_t
    rest: cython.ulonglong = value
    while rest >= 10:
        rest //= 10
        end += 1
    for i in range(end - 1, at - 1, -1):
        out[i] = 48 + value % 10
        value //= 10
    return end


def _put_seconds(out, at, ms):
    """Milliseconds as seconds, with one to three decimals and no trailing zeros: the shortest repr of ms / 1000."""
    if ms < 0:
        out[at] = 45
        at += 1
        ms = -ms
    at = _put_digits(out, at, cython.cast(cython.ulonglong, ms // 1000))
    ms %= 1000
    out[at] = 46  # the decimal point
    out[at + 1] = 48 + ms // 100
    out[at + 2] = 48 + ms // 10 % 10
    out[at + 3] = 48 + ms % 10
    at += 4
    while out[at - 1] == 48 and out[at - 2] != 46:
        at -= 1
    return at


def _put_milliseconds(out, at, us):
    """Microseconds as milliseconds: whole ones without a decimal point, others as the shortest repr of us / 1000."""
    return _put_seconds(out, at, us) if us % 1000 else _put_whole(out, at, us // 1000)


# Texts of the messages of a chat, as they are in memory. Twin: tests/reference/chat_texts.py.


def chat_texts(messages):
    """The texts that are not ASCII, of messages that are a role and a text and nothing else.

    Returns (places of these messages; their roles; their texts; places of other messages that may have such texts).

    >>> chat_texts([{"role": "user", "content": "Größe"}, {"role": "user", "content": "ja"}, {"content": ["nein"]}])
    ([0], ['user'], ['Größe'], [2])
    """
    places, roles, texts, others = [], [], [], []
    for i in range(len(messages)):
        if type(messages[i]) is not dict:
            continue
        message = messages[i]
        if type(message.get("content")) is not str:
            others.append(i)
            continue
        text = message["content"]
        if text.isascii():
            continue
        if len(message) == 2 and type(message.get("role")) is str:
            places.append(i)
            roles.append(message["role"])
            texts.append(text)
        else:
            others.append(i)
    return places, roles, texts, others


def joined_texts(texts):
    """Texts as they are in memory: Latin-1, UTF-16 or UTF-32, the last two in the machine's byte order.

    Returns (the characters of each text; the bytes of each of its characters, 1, 2 or 4; all texts, end to end).

    >>> joined_texts(["Größe", "ja"])
    ([5, 2], b'\\x01\\x01', b'Gr\\xf6\\xdfeja')
    """
    lengths, widths = [], []
    size = place = 0
    for i in range(len(texts)):
        text = texts[i]
        lengths.append(len(text))
        widths.append(PyUnicode_KIND(text))
        size += len(text) * PyUnicode_KIND(text)
    data = PyBytes_FromStringAndSize(cython.NULL, size)
    for i in range(len(texts)):
        text = texts[i]
        size = len(text) * PyUnicode_KIND(text)
        memcpy(PyBytes_AS_STRING(data) + place, PyUnicode_DATA(text), size)
        place += size
    return lengths, bytes(widths), data


# Finds words in bytes. Twin: tests/reference/words.py.


USUAL = 1 << 10  # new words in a piece
SLOTS, WIDTH = 1 << 10, 32  # of the table of words that were found before; longer words are not in it
_HIGH_BITS = cython.declare(cython.ulonglong, 0xC0C0C0C0C0C0C0C0)  # no digit, comma, colon, quote or space has one


class WordFinder:
    """Finds the words in consecutive pieces of bytes, and leaves out most of those that were found before.

    `in_words` marks the bytes of words (256 bools); all of them are 64 or larger.

    >>> in_words = np.isin(np.arange(256), list(b"abcdefgh"))
    >>> finder = WordFinder(in_words)
    >>> [(spans.tolist(), end) for spans, end in map(finder.find, (b'1 abc, "de" 23 fg', b"h abc d head"))]
    [([[2, 5], [8, 10]], 15), ([[0, 1]], 8)]
    """

    def __init__(self, in_words):
        if in_words[:64].any():
            raise ValueError("bytes of words must be 64 or larger")
        self._in_words = np.ascontiguousarray(in_words, dtype=bool).view(np.uint8)
        self._seen = np.zeros((SLOTS, WIDTH), dtype=np.uint8)  # slot -> length of a word, and its bytes

    def find(self, data):
        """The start and end of each word of two bytes or more, and the start of the one at the end of the data.

        A word at the start of the data, of any length, may belong to a word before it, and is always found. The word at
        the end may go on, and is not found.
        """
        data = np.frombuffer(data, dtype=np.uint8)
        room = USUAL
        while True:
            spans, ends = np.empty((room, 2), dtype=np.int64), np.array([0, len(data)], dtype=np.int64)
            _find(data, self._in_words, self._seen, spans, ends)
            count, end = ends.tolist()
            if count <= room:
                return spans[:count], end
            self._seen[:], room = 0, count + SLOTS  # find them all again


def _find(data, in_words, seen, spans, ends):
    at: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t = data.shape[0]
    count: cython.Py_ssize_t = 0
    with cython.nogil:
        while at < size:
            if at + 8 <= size and _eight_bytes(cython.address(data[at])) & _HIGH_BITS == 0:
                at += 8
                continue
            if not in_words[data[at]]:
                at += 1
                continue
            start = at
            while at < size and in_words[data[at]]:
                at += 1
            if at == size:
                ends[1] = start
            elif start == 0 or (at - start > 1 and not _is_known(data, start, at - start, seen)):
                if count < spans.shape[0]:
                    spans[count, 0] = start
                    spans[count, 1] = at
                count += 1
    ends[0] = count


def _eight_bytes(data):
    """Eight bytes as one integer; compilers turn this into one load."""
    return (
        cython.cast(cython.ulonglong, data[0])
        | cython.cast(cython.ulonglong, data[1]) << 8
        | cython.cast(cython.ulonglong, data[2]) << 16
        | cython.cast(cython.ulonglong, data[3]) << 24
        | cython.cast(cython.ulonglong, data[4]) << 32
        | cython.cast(cython.ulonglong, data[5]) << 40
        | cython.cast(cython.ulonglong, data[6]) << 48
        | cython.cast(cython.ulonglong, data[7]) << 56
    )


def _is_known(data, start, length, seen):
    """Whether a word's slot has it already; else it has it from now on."""
    i: cython.Py_ssize_t
    slot: cython.ulonglong = 0
    is_same: cython.bint
    if length >= seen.shape[1]:
        return False
    for i in range(start, start + length):
        slot = slot * 31 + data[i]
    slot &= seen.shape[0] - 1
    is_same = seen[slot, 0] == length
    i = 0
    while is_same and i < length:
        is_same = seen[slot, i + 1] == data[start + i]
        i += 1
    if is_same:
        return True
    seen[slot, 0] = length
    for i in range(length):
        seen[slot, i + 1] = data[start + i]
    return False
