"""Scans trace rows and session files from JSON: bytes to columns, without a Python object per number."""

import cython
import numpy as np

from kvtrace._native.numbering import renumber

# Scans trace rows from JSON: bytes to columns, without a Python object per number.
#
# The scanner accepts a subset of JSON: keys without escapes, integers, decimals that a double holds exactly, and ASCII
# strings. It stops before any other line. The caller decodes that line with a JSON library and continues, so both
# always agree. Every line must end with a newline, and PAD bytes must follow the last line; this allows loops without
# bounds checks. Twin: tests/reference/rows.py.


PAD = 32  # bytes after the data; keys are compared eight bytes at a time, so reads go past the end
MAX_KEYS = 64  # maximum number of different other keys in one buffer
SHORTEST_ROW = 32  # lower bound in bytes of a row with a time and a prompt length
EXACT_POWERS = 10.0 ** np.arange(23)  # the powers of ten that a double holds exactly

# a field is identified by the length of its quoted key (all differ) and by the key's first and last 8 bytes
_TIMESTAMP = cython.declare(cython.int, len('"timestamp"'))
_INPUT_LENGTH = cython.declare(cython.int, len('"input_length"'))
_OUTPUT_LENGTH = cython.declare(cython.int, len('"output_length"'))
_HASH_IDS = cython.declare(cython.int, len('"hash_ids"'))
_OUTPUT_HASH_IDS = cython.declare(cython.int, len('"output_hash_ids"'))
_LENGTHS = cython.declare(
    cython.int, sum(1 << len(key) for key in ('"timestamp"', '"input_length"', '"output_length"'))
)
_IDS = cython.declare(cython.int, 1 << len('"hash_ids"'))
_ALL_IDS = cython.declare(cython.int, 1 << len('"hash_ids"') | 1 << len('"output_hash_ids"'))
_UNKNOWN = cython.declare(cython.longlong, -1)  # kvtrace.trace.unknown.UNKNOWN_LENGTH
_W_TIMESTA = cython.declare(cython.ulonglong, int.from_bytes(b'"timesta', "little"))
_W_MESTAMP = cython.declare(cython.ulonglong, int.from_bytes(b'mestamp"', "little"))
_W_INPUT_L = cython.declare(cython.ulonglong, int.from_bytes(b'"input_l', "little"))
_W_OUTPUT = cython.declare(cython.ulonglong, int.from_bytes(b'"output_', "little"))
_W_LENGTH = cython.declare(cython.ulonglong, int.from_bytes(b'_length"', "little"))
_W_HASH_ID = cython.declare(cython.ulonglong, int.from_bytes(b'"hash_id', "little"))
_W_ASH_IDS = cython.declare(cython.ulonglong, int.from_bytes(b'ash_ids"', "little"))
_W_PUT_HASH = cython.declare(cython.ulonglong, int.from_bytes(b"put_hash", "little"))
_W_TRUE = cython.declare(cython.ulonglong, int.from_bytes(b"true", "little"))
_W_ALSE = cython.declare(cython.ulonglong, int.from_bytes(b"alse", "little"))
_W_NULL = cython.declare(cython.ulonglong, int.from_bytes(b"null", "little"))
_FOUR_BYTES = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_MOST = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_MOST_SIGNED = cython.declare(cython.ulonglong, 0x7FFFFFFFFFFFFFFF)
_TEN_TO_19 = cython.declare(cython.ulonglong, 10_000_000_000_000_000_000)
_TWO_TO_53 = cython.declare(cython.longlong, 1 << 53)


class Scanner:
    """The columns of the rows in one buffer. Each thread has its own scanner and reuses it for the next buffer.

    >>> scanner = Scanner(100)
    >>> line = b'{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [7, 8], "turn": 2}'
    >>> scanner.scan(line + b"\\n" + bytes(PAD), 0, len(line) + 1) == len(line) + 1
    True
    >>> scanner.hash_ids, scanner.input_length, scanner.others()
    (array([7, 8]), array([9]), [(b'turn', array([0]), array([2]))])
    """

    def __init__(self, room: int):
        self._powers = EXACT_POWERS
        self._keys = np.empty((MAX_KEYS, 3), dtype=np.int64)
        self.take_lengths(False)
        self.reserve(room)

    def take_lengths(self, lengths_only: cython.bint):
        """Take the rows of a file without any hash_ids, or those with hash_ids."""
        self._needed = _LENGTHS if lengths_only else _LENGTHS | _IDS
        self._decided = _LENGTHS | (_ALL_IDS if lengths_only else _IDS)

    def reserve(self, room: int):
        """Drop all rows and reserve space for the rows of a buffer of `room` bytes. Unused space takes no memory."""
        self._room, rows = room, room // SHORTEST_ROW + 2
        self._timestamp = np.empty(rows, dtype=np.float64)
        self._input_length = np.empty(rows, dtype=np.int64)
        self._output_length = np.empty(rows, dtype=np.int64)
        self._lines = np.empty(rows, dtype=np.int64)
        self._offsets = np.zeros(rows + 1, dtype=np.int64)
        self._output_offsets = np.zeros(rows + 1, dtype=np.int64)
        self._hash_ids = np.empty(room // 2 + 1, dtype=np.int64)
        self._output_ids = np.empty(room // 2 + 1, dtype=np.int64)
        self._notes = np.empty((room // 5 + 1, 4), dtype=np.int64)
        self.clear()

    def clear(self):
        """Drop all rows and keep the space."""
        self._row = self._ids = self._outputs = self._line = self._note = self._known = self._guess = 0
        self._any_outputs = False

    def scan(self, data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> int:
        """Scan the rows of data[start:stop]; returns the position after the last row: `stop`, or a line it rejects."""
        at: cython.Py_ssize_t = start
        end: cython.Py_ssize_t
        if not 0 <= start <= stop <= min(self._room, len(data) - PAD) or (stop > start and data[stop - 1] != 10):
            raise ValueError("data[start:stop] must be complete lines, followed by PAD bytes, within the reserved room")
        self._data = data
        with cython.nogil:
            while at < stop:
                end = self._blank_line(at)
                if end < 0:
                    end = self._take_row(at)
                    if end < 0:
                        break
                at = end
                self._line += 1
        return at

    def skip(self):
        """Count a line that has no row."""
        self._line += 1

    def add(self, timestamp: cython.double, input_length: cython.longlong, output_length: cython.longlong,
            hash_ids, output_ids=None):  # fmt: skip
        """Append a row that the caller decoded."""
        np.asarray(self._hash_ids)[self._ids : self._ids + len(hash_ids)] = hash_ids
        self._ids += len(hash_ids)
        if output_ids is not None:
            np.asarray(self._output_ids)[self._outputs : self._outputs + len(output_ids)] = output_ids
            self._outputs += len(output_ids)
            self._any_outputs = True
        self._timestamp[self._row] = timestamp
        self._input_length[self._row] = input_length
        self._output_length[self._row] = output_length
        self._end_row()
        self._line += 1

    def others(self):
        """Values of other keys: a list of (name, rows, values), with values as int64 or as a JSON array in bytes."""
        notes = np.asarray(self._notes)[: self._note]
        others = []
        for key in range(self._known):
            of_key = notes[notes[:, 1] == key]
            if len(of_key):
                name = bytes(self._data[self._keys[key, 0] : self._keys[key, 1]])
                others.append((name, of_key[:, 0].copy(), self._values(of_key)))
        return others

    def _values(self, notes):
        """The values of notes: int64 if all are integers, else the bytes of a JSON array."""
        i: cython.Py_ssize_t
        values = np.empty(notes.shape[0], dtype=np.int64)
        into: cython.longlong[::1] = values
        for i in range(notes.shape[0]):
            if self._whole_end(notes[i, 2]) != notes[i, 3]:
                spans = [bytes(self._data[notes[i, 2] : notes[i, 3]]) for i in range(notes.shape[0])]
                return b"[" + b",".join(spans) + b"]"
            into[i] = self._whole(notes[i, 2], notes[i, 3])
        return values

    @property
    def rows(self):
        return self._row

    @property
    def line(self):
        """Number of lines scanned or skipped so far."""
        return self._line

    @property
    def any_outputs(self):
        """True if a row has output_hash_ids."""
        return bool(self._any_outputs)

    @property
    def timestamp(self):
        return np.asarray(self._timestamp)[: self._row]

    @property
    def input_length(self):
        return np.asarray(self._input_length)[: self._row]

    @property
    def output_length(self):
        return np.asarray(self._output_length)[: self._row]

    @property
    def hash_ids(self):
        return np.asarray(self._hash_ids)[: self._ids]

    @property
    def offsets(self):
        return np.asarray(self._offsets)[: self._row + 1]

    @property
    def output_ids(self):
        return np.asarray(self._output_ids)[: self._outputs]

    @property
    def output_offsets(self):
        return np.asarray(self._output_offsets)[: self._row + 1]

    @property
    def lines(self):
        """The line number of each row; the buffer's first line is 0."""
        return np.asarray(self._lines)[: self._row]

    # -- one row: each method returns the position after the part that it scanned, or -1 if it rejects it ------------

    def _blank_line(self, at):
        while self._data[at] == 32 or self._data[at] == 9 or self._data[at] == 13:  # space, tab, carriage return
            at += 1
        return at + 1 if self._data[at] == 10 else -1

    def _take_row(self, at):
        """Scan a whole line and add its row; on -1 nothing is added."""
        ids: cython.Py_ssize_t = self._ids
        outputs: cython.Py_ssize_t = self._outputs
        note: cython.Py_ssize_t = self._note
        self._has = 0
        at = self._take_fields(self._spaces(at))
        if at >= 0:
            at = self._blank_line(at)
        if at < 0 or self._has & self._decided != self._needed:
            self._ids = ids
            self._outputs = outputs
            self._note = note
            return -1
        if self._has >> _OUTPUT_HASH_IDS & 1:
            self._any_outputs = True
        self._end_row()
        return at

    def _end_row(self):
        self._lines[self._row] = self._line
        self._row += 1
        self._offsets[self._row] = self._ids
        self._output_offsets[self._row] = self._outputs

    def _take_fields(self, at):
        if self._data[at] != 123:  # {
            return -1
        at = self._spaces(at + 1)
        while True:
            at = self._take_field(at)
            if at < 0:
                return -1
            at = self._spaces(at)
            if self._data[at] == 125:  # }
                return at + 1
            if self._data[at] != 44:  # a comma
                return -1
            at = self._spaces(at + 1)

    def _take_field(self, at):
        field: cython.int = self._known_key(at)
        if field == 0:
            return self._take_other(at)
        if self._has >> field & 1:  # a duplicate key: in JSON the last one counts, so the caller decodes it
            return -1
        self._has |= 1 << field
        at = self._colon(at + field)
        if at < 0:
            return -1
        if field == _HASH_IDS:
            return self._take_hash_ids(at)
        if field == _OUTPUT_HASH_IDS:
            return self._take_output_ids(at)
        if field == _TIMESTAMP:
            return self._take_timestamp(at)
        return self._take_length(at, field)

    def _known_key(self, at):
        first: cython.ulonglong = self._word(at)
        if first == _W_HASH_ID:
            return _HASH_IDS if self._word(at + 2) == _W_ASH_IDS else 0
        if first == _W_TIMESTA:
            return _TIMESTAMP if self._word(at + 3) == _W_MESTAMP else 0
        if first == _W_INPUT_L:
            return _INPUT_LENGTH if self._word(at + 6) == _W_LENGTH else 0
        if first == _W_OUTPUT:
            if self._word(at + 7) == _W_LENGTH:
                return _OUTPUT_LENGTH
            if self._word(at + 4) == _W_PUT_HASH and self._word(at + 9) == _W_ASH_IDS:
                return _OUTPUT_HASH_IDS
        return 0

    def _take_timestamp(self, at):
        """A decimal without sign or exponent, as digits / power of ten, if both are exact doubles."""
        i: cython.Py_ssize_t
        end: cython.Py_ssize_t
        point: cython.Py_ssize_t = self._whole_end(at)
        digits: cython.longlong
        if point < 0 or self._data[at] == 45:  # a minus
            return -1
        digits = self._whole(at, point)
        if self._data[point] != 46:
            self._timestamp[self._row] = cython.cast(cython.double, digits)
            return point
        end = self._digits_end(point + 1)
        if end == point + 1 or end - at > 18:
            return -1
        for i in range(point + 1, end):
            digits = digits * 10 + (self._data[i] - 48)
        if digits > _TWO_TO_53:
            return -1
        self._timestamp[self._row] = cython.cast(cython.double, digits) / self._powers[end - point - 1]
        return end

    def _take_length(self, at, field):
        end: cython.Py_ssize_t = self._whole_end(at)
        if end < 0:
            if field != _OUTPUT_LENGTH or self._word(at) & _FOUR_BYTES != _W_NULL:
                return -1
            self._output_length[self._row] = _UNKNOWN
            return at + 4
        if field == _OUTPUT_LENGTH and self._data[at] == 45:  # a minus: not the unknown length
            return -1
        if field == _INPUT_LENGTH:
            self._input_length[self._row] = self._whole(at, end)
        else:
            self._output_length[self._row] = self._whole(at, end)
        return end

    def _take_hash_ids(self, at):
        at = self._take_list(at, self._hash_ids, self._ids)
        if at >= 0:
            self._ids = self._listed
        return at

    def _take_output_ids(self, at):
        at = self._take_list(at, self._output_ids, self._outputs)
        if at >= 0:
            self._outputs = self._listed
        return at

    def _take_list(self, at, into, k):
        """A list of ids, written to into[k:]; `_listed` is the position after the last one."""
        c: cython.uint
        first: cython.Py_ssize_t
        value: cython.ulonglong
        if self._data[at] != 91:  # [
            return -1
        at = self._spaces(at + 1)
        if self._data[at] == 93:  # ]
            self._listed = k
            return at + 1
        while True:
            first = at
            value = 0
            c = self._data[at]
            while 48 <= c <= 57:
                value = value * 10 + (c - 48)
                at += 1
                c = self._data[at]
            if at - first > 18 or at == first or (self._data[first] == 48 and at - first > 1):
                at = self._long_id_end(first)  # rare: a sign, or at least 19 digits
                if at < 0:
                    return -1
                c = self._data[at]
                into[k] = self._long_id(first, at)
            else:
                into[k] = cython.cast(cython.longlong, value)
            k += 1
            if c != 44 and c != 93:
                at = self._spaces(at)
                c = self._data[at]
            if c == 93:
                self._listed = k
                return at + 1
            if c != 44:
                return -1
            at += 1
            if self._data[at] == 32:
                at = self._spaces(at + 1)
            elif self._data[at] == 9:
                at = self._spaces(at)

    def _take_other(self, at):
        """Another key and its scalar: adds a note, which `others` decodes."""
        name_end: cython.Py_ssize_t = self._string_end(at)
        value: cython.Py_ssize_t
        end: cython.Py_ssize_t
        key: cython.Py_ssize_t
        if name_end < 0:
            return -1
        value = self._colon(name_end)
        if value < 0:
            return -1
        end = self._scalar_end(value)
        if end < 0:
            return -1
        key = self._key_number(at + 1, name_end - 1)
        if key < 0 or self._keys[key, 2] == self._row:  # too many keys, or a duplicate key in this row
            return -1
        self._keys[key, 2] = self._row
        self._notes[self._note, 0] = self._row
        self._notes[self._note, 1] = key
        self._notes[self._note, 2] = value
        self._notes[self._note, 3] = end
        self._note += 1
        return end

    def _key_number(self, start, stop):
        """The number of the key data[start:stop]; a new key gets the next number, or -1 if there are too many."""
        _tried: cython.Py_ssize_t
        key: cython.Py_ssize_t = self._guess
        for _tried in range(self._known):
            if key >= self._known:
                key = 0
            if self._same(self._keys[key, 0], self._keys[key, 1], start, stop):
                self._guess = key + 1
                return key
            key += 1
        if self._known == self._keys.shape[0]:
            return -1
        self._keys[self._known, 0] = start
        self._keys[self._known, 1] = stop
        self._keys[self._known, 2] = -1
        self._known += 1
        self._guess = self._known
        return self._known - 1

    # -- parts of JSON -----------------------------------------------------------------------------------------------

    def _word(self, at):
        """Eight bytes as one little-endian integer; compilers turn this into one load."""
        return (
            cython.cast(cython.ulonglong, self._data[at])
            | cython.cast(cython.ulonglong, self._data[at + 1]) << 8
            | cython.cast(cython.ulonglong, self._data[at + 2]) << 16
            | cython.cast(cython.ulonglong, self._data[at + 3]) << 24
            | cython.cast(cython.ulonglong, self._data[at + 4]) << 32
            | cython.cast(cython.ulonglong, self._data[at + 5]) << 40
            | cython.cast(cython.ulonglong, self._data[at + 6]) << 48
            | cython.cast(cython.ulonglong, self._data[at + 7]) << 56
        )

    def _same(self, a, a_end, b, b_end):
        if a_end - a != b_end - b:
            return False
        while a < a_end and self._data[a] == self._data[b]:
            a += 1
            b += 1
        return a == a_end

    def _spaces(self, at):
        while self._data[at] == 32 or self._data[at] == 9 or self._data[at] == 13:
            at += 1
        return at

    def _colon(self, at):
        """The start of the value, after spaces, a colon and spaces."""
        at = self._spaces(at)
        return self._spaces(at + 1) if self._data[at] == 58 else -1

    def _string_end(self, at):
        """The end of a string of plain ASCII, without escapes."""
        if self._data[at] != 34:  # "
            return -1
        at += 1
        while self._data[at] != 34:
            if self._data[at] < 32 or self._data[at] > 127 or self._data[at] == 92:  # a backslash
                return -1
            at += 1
        return at + 1

    def _digits_end(self, at):
        while 48 <= self._data[at] <= 57:
            at += 1
        return at

    def _whole_end(self, at):
        """The end of an integer of at most 18 digits."""
        end: cython.Py_ssize_t
        if self._data[at] == 45:
            at += 1
        end = self._digits_end(at)
        if end == at or end - at > 18 or (self._data[at] == 48 and end - at > 1):
            return -1
        return end

    def _whole(self, at, end):
        value: cython.longlong = 0
        minus: cython.bint = self._data[at] == 45
        if minus:
            at += 1
        while at < end:
            value = value * 10 + (self._data[at] - 48)
            at += 1
        return -value if minus else value

    def _long_id_end(self, at):
        """The end of an id in the range of a signed or an unsigned 64-bit integer."""
        first: cython.Py_ssize_t = at + 1 if self._data[at] == 45 else at
        end: cython.Py_ssize_t = self._digits_end(first)
        value: cython.ulonglong
        if end == first or end - first > 20 or (self._data[first] == 48 and end - first > 1):
            return -1
        value = self._long_value(first, end)
        if end - first == 20 and (self._data[first] > 49 or value < _TEN_TO_19 or value > _MOST):
            return -1  # 2^64 or more: the product wraps around in C, and exceeds the maximum in Python
        if first > at and value > _MOST_SIGNED:
            return -1
        return end

    def _long_value(self, at, end):
        value: cython.ulonglong = 0
        while at < end:
            value = value * 10 + (self._data[at] - 48)
            at += 1
        return value

    def _long_id(self, at, end):
        """The 64 bits of an id as a signed integer."""
        value: cython.ulonglong
        if self._data[at] == 45:
            return -cython.cast(cython.longlong, self._long_value(at + 1, end))
        value = self._long_value(at, end)
        if value > _MOST_SIGNED:
            return -cython.cast(cython.longlong, _MOST - value) - 1
        return cython.cast(cython.longlong, value)

    def _scalar_end(self, at):
        """The end of a string, a number, true, false or null."""
        c: cython.uchar = self._data[at]
        if c == 34:
            return self._string_end(at)
        if c == 116:  # true
            return at + 4 if self._word(at) & _FOUR_BYTES == _W_TRUE else -1
        if c == 102:  # false
            return at + 5 if self._word(at + 1) & _FOUR_BYTES == _W_ALSE else -1
        if c == 110:  # null
            return at + 4 if self._word(at) & _FOUR_BYTES == _W_NULL else -1
        return self._number_end(at)

    def _number_end(self, at):
        """The end of a number without exponent, with at most 18 digits before the point."""
        end: cython.Py_ssize_t = self._whole_end(at)
        point: cython.Py_ssize_t = end
        if end >= 0 and self._data[end] == 46:
            end = self._digits_end(point + 1)
            if end == point + 1:
                return -1
        return end


# The block ids of session files: found in the JSON text, and numbered for a trace of many sessions.
#
# Almost all of the text of a session are its `hash_ids`. `find_lists` scans them without a Python object per number; a
# JSON library decodes the rest. Twin: tests/reference/session_ids.py.


SHORTEST = 13  # bytes of a key with an empty list
_KEY = cython.declare(cython.int, len('"hash_ids"'))


def find_lists(data, size, room=None):
    """The lists of unsigned 64-bit integers under the key `hash_ids` in a JSON text: (spans, offsets, ids).

    `data` holds `size` bytes of text and PAD more. Span k is where list k begins and ends in the text, brackets
    included; its ids are ids[offsets[k]:offsets[k + 1]], and those from 2^63 keep their bits. A list with anything else
    is not found, nor is a key inside of a string. The text need not be valid JSON. `room` may hold the ids: at least
    size // 2 + 1 values of int64.

    >>> text = b'{"hash_ids": [7, 8], "other": [1], "more": {"hash_ids": [1.5]}}'
    >>> find_lists(text + bytes(PAD), len(text))
    (array([[13, 19]]), array([0, 2]), array([7, 8]))
    """
    if not 0 <= size <= len(data) - PAD:
        raise ValueError("data must have PAD bytes after the text")
    spans = np.empty((size // SHORTEST + 1, 2), dtype=np.int64)
    offsets = np.zeros(len(spans) + 1, dtype=np.int64)
    ids = np.empty(size // 2 + 1, dtype=np.int64) if room is None else room  # untouched room takes no memory
    if len(ids) < size // 2 + 1:
        raise ValueError("the room is too small for the ids of the text")
    lists = _find_lists(Scanner(0), data, size, spans, offsets, ids)
    return spans[:lists].copy(), offsets[: lists + 1].copy(), ids[: offsets[lists]]


def _find_lists(scanner: Scanner, data: cython.const[cython.uchar][::1], size: cython.Py_ssize_t,
                spans: cython.longlong[:, ::1], offsets: cython.longlong[::1], ids: cython.longlong[::1]):  # fmt: skip
    at: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    taken: cython.Py_ssize_t
    scanner._data = data
    with cython.nogil:
        while at < size:
            if data[at] != 34:  # a quote
                at += 1
                continue
            start = at
            at += 1
            while at < size and data[at] != 34:
                at += 2 if data[at] == 92 else 1  # a backslash
            at += 1
            if at - start != _KEY or at > size or scanner._word(start) != _W_HASH_ID:
                continue
            if scanner._word(start + 2) != _W_ASH_IDS:
                continue
            start = _blanks(data, at)
            if data[start] != 58:  # a colon
                continue
            start = _blanks(data, start + 1)
            if data[start] != 91:  # [
                continue
            taken = offsets[count]
            end = _take_list(scanner, data, start + 1, ids, cython.address(taken))
            if end < 0 or end > size:
                continue
            spans[count, 0] = start
            spans[count, 1] = end
            count += 1
            offsets[count] = taken
            at = end
    return count


def _blanks(data, at):
    """The position after white space; the PAD after the text ends it."""
    while data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9:
        at += 1
    return at


def _take_list(scanner, data, at, ids, taken):
    """Scan a list from after its bracket into ids[taken:]; returns the position after it, or -1 for other content."""
    k: cython.Py_ssize_t = taken[0]
    first: cython.Py_ssize_t
    value: cython.ulonglong
    at = _blanks(data, at)
    if data[at] == 93:  # ]
        return at + 1
    while True:
        first = at
        value = 0
        while 48 <= data[at] <= 57:
            value = value * 10 + (data[at] - 48)
            at += 1
        if at == first or at - first > 18 or (data[first] == 48 and at - first > 1):
            if at == first:
                return -1
            at = scanner._long_id_end(first)  # rare: at least 19 digits
            if at < 0:
                return -1
            ids[k] = scanner._long_id(first, at)
        else:
            ids[k] = cython.cast(cython.longlong, value)
        k += 1
        at = _blanks(data, at)
        if data[at] == 93:
            taken[0] = k
            return at + 1
        if data[at] != 44:  # a comma
            return -1
        at = _blanks(data, at + 1)


def number_ids(ids):
    """The ids numbered 0, 1, 2, ... by first appearance (int32), and the distinct ids in that order (int64).

    >>> number_ids(np.array([7, 9, 7]))
    (array([0, 1, 0], dtype=int32), array([7, 9]))
    """
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    if len(ids) and not (0 <= ids.min() and ids.max() < 4 * len(ids) + 1024):  # not dense enough for a table
        numbers, distinct = renumber(ids)
        values = np.empty(distinct, dtype=np.int64)
        values[numbers] = ids
        return numbers.astype(np.int32), values
    number_of = np.full(int(ids.max(initial=-1)) + 1, -1, dtype=np.int32)
    numbers, values = np.empty(len(ids), dtype=np.int32), np.empty(len(number_of), dtype=np.int64)
    distinct = _number_ids(ids, number_of, numbers, values)
    return numbers, values[:distinct].copy()


def _number_ids(ids, number_of, numbers, values):
    i: cython.Py_ssize_t
    fresh: cython.int = 0
    with cython.nogil:
        for i in range(ids.shape[0]):
            if number_of[ids[i]] < 0:
                number_of[ids[i]] = fresh
                values[fresh] = ids[i]
                fresh += 1
            numbers[i] = number_of[ids[i]]
    return fresh


def number_rows(numbers, starts, lengths, first_keys, keys, distinct):
    """The ids of some rows by first appearance: each reference is a number in its session's table of keys.

    Row r is numbers[starts[r]:starts[r] + lengths[r]] (int32), and number i of it stands for the key
    keys[first_keys[r] + i], from 0 to `distinct`. Rows end to end, in order; int64.

    >>> number_rows(np.array([0, 1, 0], dtype=np.int32), np.array([2, 0]), np.array([1, 2]), np.array([2, 0]),
    ...             np.array([5, 7, 7]), 8)
    array([0, 1, 0])
    """
    numbers = np.ascontiguousarray(numbers, dtype=np.int32)
    starts, lengths = np.ascontiguousarray(starts, dtype=np.int64), np.ascontiguousarray(lengths, dtype=np.int64)
    first_keys, keys = np.ascontiguousarray(first_keys, dtype=np.int64), np.ascontiguousarray(keys, dtype=np.int64)
    if len(keys) and not 0 <= keys.min() <= keys.max() < distinct:
        raise ValueError("a key is outside of its range")
    if len(starts) and not (starts.min() >= 0 and lengths.min() >= 0 and (starts + lengths).max() <= len(numbers)):
        raise ValueError("a row is outside of the numbers")
    ids, number_of = np.empty(int(lengths.sum()), dtype=np.int64), np.full(distinct, -1, dtype=np.int64)
    if _number_rows(numbers, starts, lengths, first_keys, keys, number_of, ids) < 0:
        raise ValueError("a number is outside of the keys")
    return ids


def _number_rows(numbers, starts, lengths, first_keys, keys, number_of, ids):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    place: cython.longlong
    key: cython.longlong
    fresh: cython.longlong = 0
    with cython.nogil:
        for row in range(starts.shape[0]):
            for i in range(starts[row], starts[row] + lengths[row]):
                place = first_keys[row] + numbers[i]
                if place < 0 or place >= keys.shape[0]:
                    fresh = -1
                    break
                key = keys[place]
                if number_of[key] < 0:
                    number_of[key] = fresh
                    fresh += 1
                ids[at] = number_of[key]
                at += 1
            if fresh < 0:
                break
    return fresh
