"""Read JSON Lines into columns: threads scan pieces of whole lines, which are joined in order.

The kernel `rows` scans lines. A line that it cannot scan is decoded here with orjson.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from .._base.arrays import GrowingArray, offsets_of
from .._base.errors import InputError, RowError
from .._base.files import MAX_LINE
from .._base.input_files import size_of
from .._native.rows import PAD, Scanner
from ..trace.unknown import NEGATIVE, UNKNOWN_LENGTH
from . import scalars

PIECE = 1 << 21  # bytes: a piece and its columns stay in the processor's cache
NEEDED = ("timestamp", "input_length")
IDS = ("hash_ids", "output_hash_ids")
KNOWN = (*NEEDED, "output_length", *IDS)
SAME = {"input_tokens": "input_length", "output_tokens": "output_length"}  # other names of fields, where those miss
COLUMNS = (*NEEDED, "output_length", "hash_ids", "output_ids")
BOM = b"\xef\xbb\xbf"

OnError = Callable[[RowError], None]


@dataclass
class JsonRows:
    """The content of JSON rows: the keys of every trace as columns, other keys by name."""

    timestamp: np.ndarray  # as written, float64
    input_length: np.ndarray
    output_length: np.ndarray  # -1 = unknown
    hash_ids: np.ndarray  # int64; ids of 2^63 and more keep their bits
    offsets: np.ndarray
    output_ids: np.ndarray | None
    output_offsets: np.ndarray | None
    lines: np.ndarray | None  # row -> line from 1; None where row r is on line r + 1
    others: dict[str, np.ndarray]  # name -> column, None for rows without a value
    nested: dict[str, int]  # name -> rows with a list or an object, which are not read
    lengths_only: bool = False  # no row has hash_ids


def read_rows(
    stream: io.BufferedReader,
    path: str,
    *,
    keep: Collection[str] | None = None,
    on_error: OnError | None = None,
    threads: int | None = None,
) -> JsonRows:
    """Read all rows of a stream of JSON Lines.

    Args:
        stream: the lines.
        path: the name of the file in messages.
        keep: the other keys to read; None = all.
        on_error: gets the errors of bad rows, which are left out; without it, the first one is raised.
        threads: scanner threads; by default one for each core.
    """
    reader = RowReader(stream, path, keep=keep, on_error=on_error, threads=threads)
    for _ in reader.pieces():
        pass
    return reader.rows()


class RowReader:
    """Reads the rows of a stream piece by piece; with `ids=False`, the ids are in the pieces alone.

    >>> stream = io.BufferedReader(io.BytesIO(b'{"timestamp":0,"input_length":2,"output_length":1,"hash_ids":[0,1]}'))
    >>> reader = RowReader(stream, "t.jsonl", ids=False)
    >>> [piece.hash_ids.tolist() for piece in reader.pieces()], reader.rows().hash_ids.tolist()
    ([[0, 1]], [])
    """

    def __init__(
        self,
        stream: io.BufferedReader,
        path: str,
        *,
        keep: Collection[str] | None = None,
        on_error: OnError | None = None,
        threads: int | None = None,
        ids: bool = True,
    ):
        content = self._content = _Content()
        self._table = _PieceTable(path, on_error, size_of(stream), ids)
        self._lines, self._threads = _Lines(stream, path), threads
        # it must not hold the reader: a cycle would keep all rows until a garbage collection
        self._new_piece = lambda: _ScannedPiece(keep, on_error is not None, content)

    def pieces(self) -> Iterator[Scanner]:
        """The columns of consecutive rows, in order; the next piece reuses their buffers."""
        for piece in _scanned(self._lines, self._new_piece, self._content, self._threads):
            self._table.add(piece)
            yield piece.scanner

    @property
    def growth(self) -> float:
        """The ratio of the whole file to the pieces so far; 1 if the file's size is not known."""
        return self._table.growth

    def rows(self) -> JsonRows:
        """All rows of the pieces so far."""
        rows = self._table.rows()
        rows.lengths_only = self._content.lengths_only is True
        return rows


def each_piece(stream: io.BufferedReader, path: str, *, threads: int | None = None) -> Iterator[Scanner]:
    """The readable rows piece by piece, and nothing else; the next piece reuses the buffers."""
    content = _Content()
    for piece in _scanned(_Lines(stream, path), lambda: _ScannedPiece((), True, content), content, threads):
        if piece.failure:
            raise piece.failure
        yield piece.scanner


@dataclass
class _Content:
    """What the first readable row has, and all others must have, too."""

    lengths_only: bool | None = None  # no hash_ids; None before that row


def _scanned(
    lines: _Lines, new_piece: Callable[[], _ScannedPiece], content: _Content, threads: int | None
) -> Iterator[_ScannedPiece]:
    """The scanned pieces in order. Threads scan the next pieces; a piece is filled again after its turn."""
    piece = new_piece()
    while content.lengths_only is None:  # threads need to know
        if not lines.fill(piece):
            return
        yield piece.scan()
    if lines.ended:
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    from .._base.workers import WorkerPool, cores  # of processes, too: a small file is read without them

    threads = threads or cores()
    if threads == 1:
        while lines.fill(piece):
            yield piece.scan()
        return
    free, waiting, more = [piece], deque[Future[_ScannedPiece]](), threads  # a small file needs no further pieces
    with WorkerPool(ThreadPoolExecutor(threads)) as pool:
        while True:
            while not lines.ended and (free or more):
                more -= not free
                piece = free.pop() if free else new_piece()
                if lines.fill(piece):
                    waiting.append(pool.submit(piece.scan))
            if not waiting:
                return
            scanned = pool.result(waiting.popleft())
            yield scanned
            free.append(scanned)


class _Lines:
    """Cuts a stream into pieces of whole lines."""

    def __init__(self, stream, path):
        self._stream, self._path = stream, path
        self._rest = b""  # the start of a line that the last piece cut off
        self._offset = 0
        self.ended = False  # the stream is at its end

    def fill(self, piece: _ScannedPiece) -> bool:
        """Put the next lines into a piece; False at the end of the stream.

        A read error is raised in the piece's turn, so that earlier errors are reported first.
        """
        if self.ended:
            return False
        try:
            return self._fill(piece)
        except InputError as error:
            self.ended, piece.failure = True, error
            return True

    def _fill(self, piece) -> bool:
        have = len(self._rest)
        piece.need(have + 1)
        piece.buffer[:have] = self._rest
        while True:
            have += self._read(memoryview(piece.buffer)[have : piece.room])
            end = piece.buffer.rfind(b"\n", 0, have) + 1
            if end or self.ended:
                break
            if have >= MAX_LINE:
                raise InputError(
                    f"{self._path}: the line at byte {self._offset:,} is longer than {MAX_LINE:,} bytes. "
                    "Is it JSON Lines?"
                )
            piece.need(2 * have)
        if self.ended and have > end:  # the last line lacks its newline
            piece.buffer[have : have + 1] = b"\n"
            have = end = have + 1
        piece.start = len(BOM) if self._offset == 0 and piece.buffer.startswith(BOM) else 0
        piece.stop, piece.offset = end, self._offset
        self._rest = bytes(memoryview(piece.buffer)[end:have])
        self._offset += end
        return end > 0

    def _read(self, into) -> int:
        """Fill the view from the stream; returns fewer bytes only at the end."""
        have = 0
        while have < len(into) and (more := self._stream.readinto(into[have:])):
            have += more
        self.ended = have < len(into)
        return have


class _ScannedPiece:
    """Some lines, and their columns after a scan."""

    def __init__(self, keep, tolerant, content):
        self._keep, self._tolerant, self._content = keep, tolerant, content
        self.room, self.buffer = 0, bytearray()
        self.failure: InputError | None = None  # the stream could not be read
        self.start = self.stop = self.offset = 0
        self.scanner = Scanner(0)
        self.need(PIECE)

    def need(self, room: int):
        """Grow the buffer to `room` bytes and a newline; its content stays."""
        if room > self.room:
            self.room, self.buffer = room, self.buffer[: self.room] + bytearray(room - self.room + 1 + PAD)
            self.scanner.reserve(room + 1)

    def scan(self) -> _ScannedPiece:
        """Fill the scanner's columns from the lines."""
        scanner, at = self.scanner, self.start
        scanner.clear()
        scanner.take_lengths(self._content.lengths_only is True)
        self.errors: list[tuple[RowError, int, int, int]] = []  # with the line, first byte and length in the piece
        self.nested: dict[str, int] = {}
        self._odd: dict[str, tuple[list[Any], list[Any]]] = {}  # other keys of rows decoded here: name -> rows, values
        if self.failure:
            return self
        while (at := self._take_rows(at)) < self.stop:
            end = self.buffer.index(b"\n", at) + 1
            try:
                self._decode(bytes(memoryview(self.buffer)[at : end - 1]))
            except RowError as error:
                self.errors.append((error, scanner.line, at, end - at))
                scanner.skip()
                if not self._tolerant:
                    break
            at = end
        self.others = [chunk for chunk in self._noted() if self._keep is None or chunk[0] in self._keep]
        return self

    def _take_rows(self, at: int) -> int:
        """Scan rows from a position on; returns that of a line which the scanner cannot scan, or the end."""
        at = self.scanner.scan(self.buffer, at, self.stop)
        if self.scanner.rows and self._content.lengths_only is None:
            self._content.lengths_only = False
        return at

    def _decode(self, line: bytes):
        """Decode a row that the scanner cannot scan."""
        row = decode_row(line)
        lengths_only = "hash_ids" not in row
        if self._content.lengths_only is False and lengths_only:
            raise RowError("hash_ids is missing.")
        if lengths_only and "output_hash_ids" in row:
            raise RowError("the row has output_hash_ids, but no hash_ids.")
        if self._content.lengths_only and not lengths_only:
            raise RowError("the row has hash_ids, but the first row has none.", hint="Give all rows hash_ids, or none.")
        ids = [id_list(row[name], name) if name in row else None for name in IDS]
        at, nothing = self.scanner.rows, np.empty(0, np.int64)
        numbers = time_of(row["timestamp"]), whole_number(row["input_length"], "input_length"), output_of(row)
        self.scanner.add(*numbers, nothing if ids[0] is None else ids[0], ids[1])
        if self._content.lengths_only is None:
            self._content.lengths_only = lengths_only
            self.scanner.take_lengths(lengths_only)
        for name, value in row.items():
            if isinstance(value, (dict, list)):
                if name not in KNOWN:
                    self.nested[name] = self.nested.get(name, 0) + 1
            elif name not in KNOWN:
                rows, values = self._odd.setdefault(name, ([], []))
                rows.append(at)
                values.append(value)

    def _noted(self) -> Iterator[tuple[str, np.ndarray, Any]]:
        for name, rows, values in self.scanner.others():
            yield name.decode("ascii"), rows, scalars.decode(values)
        for name, (rows, values) in self._odd.items():
            yield name, np.array(rows, dtype=np.int64), values


class _PieceTable:
    """Joins scanned pieces."""

    def __init__(self, path, on_error, size, ids):
        self._path, self._on_error, self._size, self._ids = path, on_error, size, ids
        self._columns = {name: GrowingArray(np.int64) for name in COLUMNS}
        self._columns["timestamp"] = GrowingArray(np.float64)
        self._blocks, self._output_blocks = GrowingArray(np.int64), GrowingArray(np.int64)
        self._lines: list[tuple[int, np.ndarray]] = []  # rows before, and the lines of rows after a gap
        self._others: dict[str, list[scalars.Chunk]] = {}
        self._nested: dict[str, int] = {}
        self._rows, self._line, self._any_outputs = 0, 0, False
        self.growth = 1.0  # ratio of the whole file to the part read so far

    def add(self, piece: _ScannedPiece):
        """Append a piece; its first bad row is raised, or all are passed to on_error."""
        if piece.failure:
            raise piece.failure
        scanner = piece.scanner
        for error, line, at, length in piece.errors:
            error.at(self._path, self._line + line + 1, piece.offset + at, length)
            if self._on_error is None:
                raise error
            self._on_error(error)
        self.growth = growth = self._size / (piece.offset + piece.stop) if self._size else 1.0
        for name, column in self._columns.items():
            if self._ids or name not in ("hash_ids", "output_ids"):
                column.extend(getattr(scanner, name), growth)
        self._blocks.extend(np.diff(scanner.offsets), growth)
        self._output_blocks.extend(np.diff(scanner.output_offsets), growth)
        self._any_outputs |= scanner.any_outputs
        for name, rows, values in piece.others:
            self._others.setdefault(name, []).append((rows + self._rows, values))
        scalars.require_few_keys(self._others, self._path)
        for name, count in piece.nested.items():
            self._nested[name] = self._nested.get(name, 0) + count
        self._note_lines(scanner.lines)
        self._rows += scanner.rows
        self._line += scanner.line

    def _note_lines(self, lines):
        if self._lines or self._line != self._rows or (len(lines) and lines[-1] != len(lines) - 1):
            self._lines.append((self._rows, lines + self._line + 1))

    def rows(self) -> JsonRows:
        """All rows so far."""
        column = {name: growing.values() for name, growing in self._columns.items()}
        return JsonRows(
            **{name: column[name] for name in COLUMNS[:-1]}, offsets=offsets_of(self._blocks.values()),
            output_ids=column["output_ids"] if self._any_outputs else None,
            output_offsets=offsets_of(self._output_blocks.values()) if self._any_outputs else None,
            lines=self._all_lines(),
            others={name: scalars.column(self._rows, chunks) for name, chunks in self._others.items()},
            nested=self._nested,
        )  # fmt: skip

    def _all_lines(self):
        if not self._lines:
            return None
        lines = np.arange(1, self._rows + 1)
        for before, moved in self._lines:
            lines[before : before + len(moved)] = moved
        return lines


# -- one line, decoded by orjson ---------------------------------------------------------------------------------


def decode_row(line: bytes) -> dict[str, Any]:
    """The row on a line, with the names of our fields; RowError if it is not valid."""
    row = decode_object(line)
    row = {name if (ours := SAME.get(name, name)) in row else ours: value for name, value in row.items()}
    for name in NEEDED:
        if name not in row:
            raise RowError(f"{name} is missing.")
    return row


def decode_object(line: bytes) -> dict[str, Any]:
    """The JSON object on a line; RowError if it is not one."""
    place = 0
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        place = error.pos + 1
    if place:  # raised outside the handler: orjson's error contains the line and must not be its context
        raise _not_json(line, place)
    if not isinstance(row, dict):
        raise RowError("the row is not a JSON object.", hint="A trace has one object on each line.")
    return row


def _not_json(line, place) -> RowError:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        utf16 = line[:2] in (b"\xff\xfe", b"\xfe\xff")
        hint = "It looks like UTF-16. Try iconv -f UTF-16 -t UTF-8." if utf16 else None
        return RowError(f"the row is not UTF-8 at byte {error.start + 1:,}.", hint=hint)
    hint = "A trace has one object on each line. Try jq -c '.[]' or jq -c ." if line.strip() in (b"[", b"{") else None
    return RowError(f"the row is not JSON from character {place:,}.", hint=hint)


def output_of(row: dict[str, Any]) -> int:
    """The output length of a row; unknown if it is null or missing. A file's -1 is a negative length as any other.

    >>> [output_of(row) for row in ({"output_length": 5}, {"output_length": None}, {}, {"output_length": -1})]
    [5, -1, -1, -2]
    """
    value = row.get("output_length")
    length = UNKNOWN_LENGTH if value is None else whole_number(value, "output_length")
    return NEGATIVE if value is not None and length == UNKNOWN_LENGTH else length


def time_of(value: Any, name: str = "timestamp") -> float:
    """A time as a double."""
    if type(value) not in (int, float):
        raise RowError(f"{name} is not a number.")
    return float(value)


def whole_number(value: Any, name: str) -> int:
    """A signed 64-bit integer; `1e3` is valid, 1.5 is not."""
    number = _integer(value)
    if number is None or not -(2**63) <= number < 2**63:
        raise RowError(f"{name} is not a whole number of 64 bits.")
    return number


def id_list(values: Any, name: str) -> np.ndarray:
    """A list of signed or unsigned 64-bit ids; those from 2^63 keep their bits."""
    if type(values) is not list:
        raise RowError(f"{name} is not a list.")
    if set(map(type, values)) == {int}:
        with suppress(OverflowError):  # of ids from 2^63
            return np.array(values, dtype=np.int64)
    numbers = [_integer(value) for value in values]
    if any(number is None for number in numbers):
        raise RowError(f"{name} has a value that is not a whole number of 64 bits.")
    return np.array([number - 2**64 if number >= 2**63 else number for number in numbers], dtype=np.int64)  # type: ignore[operator]


def _integer(value) -> int | None:
    """The integer value of a JSON number; None if it is not an integer, or too large for orjson to read exactly."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    return None
