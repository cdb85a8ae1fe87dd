"""Sources of raw logs: files, directories, globs and stdin, split into pieces of whole lines.

A piece of a plain file is a byte range, which the worker reads itself. A piece of a compressed file, a pipe or stdin
carries its bytes, since these can only be read from the front.

OpenAI's Batch (platform.openai.com/docs/guides/batch) has a file of requests and one of responses, joined by
`custom_id`. Responses can be in any order. A first pass records where each of them begins, in about 150 bytes of
memory; then each request is read with its response. The joined rows are in the order of the requests.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import orjson

from ..._base.errors import InputError, MissingFileError, RowError, UsageError
from ..._base.files import MAX_LINE, SUFFIXES, name_of
from ..._base.input_files import bytes_read, form_of, open_read, size_of, unreadable
from ..._base.json_values import parsed_json
from . import kv_events
from .layouts import HEAD, json_lines, layout_of, parquet_lines, physical_lines, table_lines

STDIN = "-"
NAMES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")  # log files in a directory, each also with one of SUFFIXES
SIDECAR = ".meta.json"  # beside our traces; not a log
PIECE_BYTES = 4 << 20
SAMPLE_ROWS = 1000


@dataclass(slots=True)
class LogSource:
    """A file, pipe or stdin with log lines."""

    path: str  # "-" = stdin
    size: int = 0  # bytes on disk, 0 = unknown
    form: str | None = None  # plain, gzip or zstd; None = unknown before reading (a pipe or stdin)
    layout: str = "lines"  # of layout_of, or batch; of a pipe: known when it is read
    responses: tuple[str, ...] = ()  # files with the responses to these requests of a Batch
    stream: Iterator[LogPiece] | None = field(default=None, repr=False)  # the pieces of a pipe, which is read once


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Consecutive whole lines of one source."""

    path: str
    index: int  # number within its source, from 0
    start: int  # byte offset in the decompressed text
    size: int  # bytes
    done: int  # bytes on disk of all sources up to the end of this piece
    data: bytes | None = field(default=None, repr=False)  # the lines; None = read them from the file

    def read(self) -> bytes:
        """The lines with their newlines; InputError if the file no longer has them."""
        if self.data is not None:
            return self.data
        with open_read(self.path) as stream:
            data = b""
            if stream.seekable():  # else it is not the file that it was
                stream.seek(self.start)
                data = stream.read(self.size)
        if len(data) < self.size:
            raise InputError(f"{self.path}: became shorter while it was read. Run again when it no longer changes.")
        return data


def find(arguments: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[LogSource]:
    """The sources of paths, directories, globs or `-`, each once.

    Arguments keep their order. The files of a directory or a glob are sorted. InputError if a file is missing or
    unreadable, or if a directory or a glob has no log files.
    """
    if isinstance(arguments, (str, os.PathLike)):
        arguments = [arguments]
    path_of: dict[str, str] = {}  # real path -> path as given
    for argument in arguments:
        for path in _expand(os.fspath(argument)):
            path_of.setdefault(path if path == STDIN else os.path.realpath(path), path)
    if not path_of:
        raise UsageError("no log is given. Name a file, a directory, a glob, or - for stdin.")
    return _with_responses([_source(path) for path in path_of.values()])


def _with_responses(sources: list[LogSource]) -> list[LogSource]:
    """The sources; if some hold requests of a Batch and others their responses, the requests name the responses."""
    if len(sources) < 2 or not all(source.form == "plain" and source.layout == "lines" for source in sources):
        return sources
    kinds = [kind_of(first_line(source.path)) for source in sources]
    if not {"requests", "responses"} <= {*kinds}:
        return sources
    responses = tuple(source.path for source, kind in zip(sources, kinds, strict=True) if kind == "responses")
    named = {source.path: responses for source, kind in zip(sources, kinds, strict=True) if kind == "requests"}
    return [
        replace(source, layout="batch", responses=named[source.path]) if source.path in named else source
        for source in sources
        if source.path not in responses
    ]


def total(sources: Iterable[LogSource]) -> int:
    """Bytes of all sources on disk; 0 if the size of one is unknown."""
    sources = list(sources)
    return sum(source.size for source in sources) if all(source.form for source in sources) else 0


def sample(sources: list[LogSource], rows: int = SAMPLE_ROWS) -> list[bytes]:
    """The first lines of the sources, to detect their format. Pipes can still be read from the start afterwards."""
    lines: list[bytes] = []
    size = 0
    for source in sources:
        first = next(_pieces_of(source, PIECE_BYTES), None)
        if first is None:
            continue
        if source.stream is not None:
            source.stream = chain([first], source.stream)
        lines += [line for line in first.read().split(b"\n") if line and not line.isspace()][: rows - len(lines)]
        size += first.size
        if len(lines) >= rows or size >= PIECE_BYTES:
            break
    return lines


def pieces(sources: Iterable[LogSource], size: int | None = None) -> Iterator[LogPiece]:
    """The lines of all sources, in order, in pieces of about `size` bytes (default PIECE_BYTES); long lines stay whole.

    A byte order mark is left out. InputError if a source cannot be read to its end.
    """
    before = 0  # bytes of the finished sources
    for source in sources:
        read_bytes = 0
        for piece in _pieces_of(source, size or PIECE_BYTES):
            read_bytes = piece.done
            yield replace(piece, done=before + read_bytes)
        before += source.size or read_bytes


def _expand(argument):
    if argument == STDIN or os.path.isfile(argument):
        return [argument]
    if os.path.isdir(argument):
        paths = _logs_below(argument)
        if not paths:
            raise InputError(f"{argument}: the directory has no {', '.join(NAMES)} file, nor a .gz or .zst of one.")
        return paths
    if os.path.lexists(argument):  # a pipe, or a broken link
        return [argument]
    if not glob.has_magic(argument):
        raise MissingFileError(f"{argument}: no such file or directory.")
    matches = sorted(glob.glob(argument, recursive=True))
    paths = [path for match in matches for path in (_logs_below(match) if os.path.isdir(match) else [match])]
    if not paths:
        raise InputError(f"{argument}: no file matches this pattern.")
    return paths


def _logs_below(directory):
    """The log files below a directory, sorted, without names that start with a dot."""

    def fail(error):
        raise unreadable(error.filename, error)

    paths = []
    for folder, folders, names in os.walk(directory, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [os.path.join(folder, name) for name in names if _is_log(name)]
    return sorted(paths)


def _is_log(name):
    name = name.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.endswith(NAMES) and not name.endswith(SIDECAR) and not name.startswith(".")


def _source(path):
    """The source at a path. A file is opened once now, so that an unreadable one fails before hours of work."""
    if path == STDIN:
        return LogSource(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        return LogSource(path)
    with open_read(path) as stream:
        return LogSource(path, status.st_size, form_of(stream) or "plain", layout_of(stream.read(HEAD)))


def _pieces_of(source, size):
    """The pieces of one source, from its start; a pipe that was sampled replays the sample first."""
    if source.layout != "lines":
        return _read_rows(source, size)
    if source.form == "plain":
        return _byte_ranges(source, size)
    if source.form is not None:
        return _read_pieces(source, size)
    if source.stream is None:
        source.stream = _read_pieces(source, size)
    return source.stream


def _byte_ranges(source, size):
    """Pieces of a plain file, as byte ranges."""
    with open_read(source.path) as stream:
        end = size_of(stream) or 0
        start = _text_start(stream.read(3), source.path)
        index = 0
        while start < end:
            stop = end
            if start + size < end:
                stream.seek(start + size - 1)
                rest = len(stream.readline(MAX_LINE + 1))  # of the line that the piece would cut
                stop = start + size - 1 + rest
                if rest > MAX_LINE:
                    raise too_long(source.path, start + size - 1)
            yield LogPiece(source.path, index, start, stop - start, stop)
            start, index = stop, index + 1


def _read_rows(source, size):
    """Pieces of a file whose rows do not stand one a line, with their bytes."""
    with open_read(source.path) as stream:
        yield from _pieces_of_rows(source, stream, size, source.layout)


def _pieces_of_rows(source, stream, size, layout, first=b""):
    """Pieces of the rows of a stream, which become one line each; `first` is what was read of it already."""
    chunks = chain([first] if first else [], iter(lambda: stream.read1(size), b""))
    name = name_of(source.path)
    if layout == "batch":
        lines = joined_lines(physical_lines(chunks, name), source.responses)
    elif layout == "parquet":
        if source.form != "plain":
            raise InputError(
                f"{name}: a Parquet table is read from its end, so it must be a file that is not compressed."
            )
        lines = parquet_lines(source.path)
    elif layout == "kv-events":
        lines = kv_events.row_lines(physical_lines(chunks, name))
    else:
        lines = json_lines(chunks, name) if layout == "json" else table_lines(chunks, name)
    rows, length, start, index = [], 0, 0, 0
    for row in lines:
        row = row.strip()
        rows.append(row)
        length += len(row) + 1
        if length >= size:
            yield LogPiece(source.path, index, start, length, bytes_read(stream), b"\n".join([*rows, b""]))
            rows, length, start, index = [], 0, start + length, index + 1
    if rows:
        yield LogPiece(source.path, index, start, length, bytes_read(stream), b"\n".join([*rows, b""]))


def _read_pieces(source, size):
    """Pieces of a compressed file or a stream, with their bytes."""
    with open_read(source.path) as stream:
        first = b""
        if source.form is None:  # a pipe: its first bytes decide
            while len(first) < HEAD and (text := stream.read1(size)):
                first += text
            if (layout := layout_of(first)) != "lines":
                yield from _pieces_of_rows(source, stream, size, layout, first)
                return
        while len(first) < 3 and (text := stream.read1(size)):
            first += text
        start, index = _text_start(first, source.path), 0
        buffer, newline = bytearray(), 0  # newline: end of the last complete line in `buffer`
        # a compressed block may be a thousand times larger: each text has at most `size` bytes
        for text in chain([first[start:]], iter(lambda: stream.read1(size), b"")):
            last = text.rfind(b"\n")
            newline = len(buffer) + last + 1 if last >= 0 else newline
            buffer += text
            if len(buffer) - newline > MAX_LINE:
                raise too_long(source.path, start + newline)
            if newline and len(buffer) >= size:
                yield LogPiece(source.path, index, start, newline, bytes_read(stream), bytes(buffer[:newline]))
                del buffer[:newline]
                start, index, newline = start + newline, index + 1, 0
        if buffer:
            yield LogPiece(source.path, index, start, len(buffer), bytes_read(stream), bytes(buffer))


def too_long(path: str, offset: int) -> InputError:
    """The error for a line that is longer than MAX_LINE, and that begins at or before a byte."""
    return InputError(
        f"{name_of(path)}: the line at byte {offset:,} is longer than {MAX_LINE:,} bytes. Is it JSON Lines?"
    )


def _text_start(head, path):
    """The length of a UTF-8 byte order mark, or 0. InputError if the text is UTF-16."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{name_of(path)}: is UTF-16, but logs must be UTF-8. Convert it: iconv -f UTF-16 -t UTF-8.")
    return 3 if head[:3] == b"\xef\xbb\xbf" else 0


def kind_of(line: bytes) -> str | None:
    """The content of a line of a Batch: `requests`, `responses`, or None if it holds both or is of another log.

    >>> kind_of(b'{"custom_id": "a", "body": {}}'), kind_of(b'{"custom_id": "a", "response": {}}'), kind_of(b"{}")
    ('requests', 'responses', None)
    """
    row = _row(line)
    if "custom_id" not in row or ("body" in row) == ("response" in row):
        return None
    return "requests" if "body" in row else "responses"


def first_line(path: str) -> bytes:
    """The first line of a file, at most a megabyte of it."""
    with open_read(path) as stream:
        return stream.readline(1 << 20)


def joined_lines(lines: Iterable[bytes], paths: Iterable[str]) -> Iterator[bytes]:
    """The lines of requests, each with its response from these files; InputError if a `custom_id` has two responses."""
    places = _places(paths)
    streams: dict[str, Any] = {}
    try:
        for line in lines:
            row = _row(line)
            identity = row.get("custom_id")
            place = places.get(identity) if type(identity) is str else None
            if place is None:
                yield line
                continue
            if place.path not in streams:
                streams[place.path] = open_read(place.path)
            stream = streams[place.path]
            stream.seek(place.start)
            yield orjson.dumps(row | {"response": _row(stream.readline(MAX_LINE)).get("response")})
    finally:
        for stream in streams.values():
            stream.close()


@dataclass(frozen=True, slots=True)
class _ResponsePlace:
    path: str
    start: int  # bytes


def _places(paths) -> dict[str, _ResponsePlace]:
    """custom_id -> the place of its response."""
    places: dict[str, _ResponsePlace] = {}
    for path in paths:
        with open_read(path) as stream:
            start = 0
            while line := stream.readline(MAX_LINE):
                identity = _row(line).get("custom_id")
                if type(identity) is str:
                    if identity in places:
                        raise InputError(f"{name_of(path)}: a custom_id has two responses. Run each batch by itself.")
                    places[identity] = _ResponsePlace(path, start)
                start += len(line)
    return places


def _row(line) -> dict[str, Any]:
    try:
        row = parsed_json(line)
    except (orjson.JSONDecodeError, RowError):
        return {}
    return row if type(row) is dict else {}
