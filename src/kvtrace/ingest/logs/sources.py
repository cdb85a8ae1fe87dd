"""Where raw logs come from: files, directories, globs and stdin, cut into pieces of whole lines.

A piece of a plain file is only a span, which whoever gets it reads for itself; a piece of a compressed file, of a pipe
or of stdin carries its bytes, since those can be read only from the front.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, BinaryIO

from ..._base.errors import InputError, UsageError
from ..._base.files import name_of

STDIN = "-"
NAMES = (".jsonl", ".ndjson", ".json", ".csv")  # what a directory is searched for, each also with one of SUFFIXES
SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
SIDECAR = ".meta.json"  # beside a trace of ours; not a log
PIECE_BYTES = 4 << 20
BLOCK_BYTES = 64 << 10  # read at a time from what is compressed or a pipe
SAMPLE_ROWS = 1000


@dataclass(slots=True)
class Source:
    """One place to read a log from."""

    path: str  # "-" = stdin
    size: int = 0  # bytes on disk, 0 where it can't be known
    form: str | None = None  # plain, gzip or zstd; None where only reading tells
    begun: Iterator[Piece] | None = field(default=None, repr=False)  # pieces of what can be read but once


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines that follow each other in one source."""

    path: str
    index: int  # place among the pieces of its source, from 0
    start: int  # byte offset of the first byte, in the text once decompressed
    size: int  # bytes
    done: int  # bytes of all sources, as they are on disk, that are read once this piece is
    data: bytes | None = field(default=None, repr=False)  # None: read them from the file

    def read(self) -> bytes:
        """The bytes of the lines, each but a file's last with its newline; InputError where they have gone."""
        if self.data is not None:
            return self.data
        with _reading(self.path) as file:
            file.seek(self.start)
            data = file.read(self.size)
        if len(data) < self.size:
            raise InputError(f"{self.path}: became shorter while it was read.")
        return data


def find(arguments: str | os.PathLike | Iterable[str | os.PathLike]) -> list[Source]:
    """The sources that paths, directories, globs or `-` name, each once.

    The arguments keep their order; what a directory or glob stands for is sorted. InputError where one is missing,
    unreadable, or names nothing.
    """
    if isinstance(arguments, (str, os.PathLike)):
        arguments = [arguments]
    found: dict[str, str] = {}  # real path -> path as named
    for argument in arguments:
        for path in _expand(os.fspath(argument)):
            found.setdefault(path if path == STDIN else os.path.realpath(path), path)
    if not found:
        raise UsageError("no log was named. Try a file, a directory, a glob, or - for stdin.")
    return [_source(path) for path in found.values()]


def total(sources: Iterable[Source]) -> int:
    """Bytes of all the sources, as they are on disk; 0 where one of them is not known."""
    sources = list(sources)
    return sum(source.size for source in sources) if all(source.form for source in sources) else 0


def sample(sources: list[Source], rows: int = SAMPLE_ROWS) -> list[bytes]:
    """The first lines of the sources, as many as it takes to see what they hold; nothing is used up."""
    lines: list[bytes] = []
    size = 0
    for source in sources:
        first = next(_begin(source, PIECE_BYTES), None)
        if first is None:
            continue
        if source.begun is not None:
            source.begun = chain([first], source.begun)
        lines += [line for line in first.read().split(b"\n") if line and not line.isspace()][: rows - len(lines)]
        size += first.size
        if len(lines) >= rows or size >= PIECE_BYTES:
            break
    return lines


def pieces(sources: Iterable[Source], size: int | None = None) -> Iterator[Piece]:
    """The sources' lines in order, in pieces of about `size` bytes (PIECE_BYTES if None), more where a line is longer.

    A byte order mark is left out. InputError where a source can't be read to its end.
    """
    before = 0  # bytes of the sources that are done
    for source in sources:
        done = 0
        for piece in _begin(source, size or PIECE_BYTES):
            done = piece.done
            yield replace(piece, done=before + done)
        before += source.size or done


def _expand(argument):
    if argument == STDIN or os.path.isfile(argument):
        return [argument]
    if os.path.isdir(argument):
        return _search(argument) or _nothing(f"{argument}: holds no {', '.join(NAMES)} file, nor a .gz or .zst of one.")
    if os.path.lexists(argument):  # a pipe, or a link that leads nowhere
        return [argument]
    if not glob.has_magic(argument):
        _nothing(f"{argument}: no such file or directory.")
    matches = sorted(glob.glob(argument, recursive=True))
    paths = [path for match in matches for path in (_search(match) if os.path.isdir(match) else [match])]
    return paths or _nothing(f"{argument}: no file matches this pattern.")


def _nothing(reason):
    raise InputError(reason)


def _search(directory):
    """The logs below a directory, sorted; names that begin with a dot are left alone."""

    def fail(error):
        raise _unreadable(error.filename, error)

    found = []
    for folder, folders, names in os.walk(directory, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in names if _is_log(name)]
    return sorted(found)


def _is_log(name):
    name = name.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.endswith(NAMES) and not name.endswith(SIDECAR) and not name.startswith(".")


def _source(path):
    """A plain or compressed file, opened once now so that what can't be read is known before hours of work."""
    if path == STDIN:
        return Source(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        return Source(path)
    with _reading(path) as file:
        form = _form(file.read(4)) or SUFFIXES.get(os.path.splitext(path)[1].lower()) or "plain"
    return Source(path, status.st_size, form)


def _form(head):
    """gzip or zstd by the first four bytes (zstd files may begin with a skippable frame); None for neither."""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    is_skippable = head[1:] == b"\x2a\x4d\x18" and head[0] >> 4 == 5
    return "zstd" if is_skippable or head == b"\x28\xb5\x2f\xfd" else None


def _begin(source, size):
    """The pieces of one source: from the front, or from where a sample of what can be read but once left off."""
    if source.form == "plain":
        return _spans(source, size)
    if source.form is not None:
        return _chunks(source, size)
    if source.begun is None:
        source.begun = _chunks(source, size)
    return source.begun


def _spans(source, size):
    """Pieces of a plain file that say where their lines are."""
    with _reading(source.path) as file:
        end = os.fstat(file.fileno()).st_size
        start = _text_start(file.read(3), source.path)
        index = 0
        while start < end:
            stop = end
            if start + size < end:
                file.seek(start + size - 1)
                stop = start + size - 1 + len(file.readline())
            yield Piece(source.path, index, start, stop - start, stop)
            start, index = stop, index + 1


def _chunks(source, size):
    """Pieces of a compressed file or a stream, with their bytes."""
    done = 0  # bytes as they are on disk

    def blocks(file):
        nonlocal done
        while block := file.read1(BLOCK_BYTES):
            done += len(block)
            yield block

    with _reading(source.path) as file:
        texts = _led(_text(_led(blocks(file), 4), source), 3)
        first = next(texts, b"")
        start, index = _text_start(first, source.path), 0
        held, newline = bytearray(), 0  # newline: where the last whole line in `held` ends
        # a block may hold a thousand times itself once decompressed: pieces keep their size all the same
        texts = (text[i : i + size] for text in chain([first[start:]], texts) for i in range(0, len(text), size))
        for text in texts:
            last = text.rfind(b"\n")
            newline = len(held) + last + 1 if last >= 0 else newline
            held += text
            if newline and len(held) >= size:
                yield Piece(source.path, index, start, newline, done, bytes(held[:newline]))
                del held[:newline]
                start, index, newline = start + newline, index + 1, 0
        if held:
            yield Piece(source.path, index, start, len(held), done, bytes(held))


def _led(blocks, least):
    """The same bytes, the first block with `least` of them or more, where there are so many."""
    head = b""
    for block in blocks:
        if head is not None:
            head += block
            if len(head) < least:
                continue
            block, head = head, None
        yield block
    if head:
        yield head


def _text(blocks, source):
    """The bytes of the blocks, decompressed if they are compressed: gzip members and zstd frames end to end."""
    first = next(blocks, b"")
    form = source.form or _form(first[:4]) or "plain"
    blocks = chain([first], blocks)
    if form == "plain":
        yield from blocks
        return
    new, fault = _decoder(form)
    decoder = new()
    try:
        for block in blocks:
            while block:
                decoder = decoder or new()
                yield decoder.decompress(block)
                if not decoder.eof:
                    break
                block, decoder = decoder.unused_data.lstrip(b"\0"), None  # tapes and tars pad with zeros
    except fault:
        decoder = None
        fault = True
    if fault is True:  # raised out here, so that the library's error, which may quote data, does not hang on ours
        raise InputError(f"{name_of(source.path)}: not {form} data, or damaged.")
    if decoder is not None:
        raise InputError(f"{name_of(source.path)}: the {form} data ends too early; the file was cut short.")


def _decoder(form) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes a decompressor of one member or frame, and the error that it raises.

    Not gzip.open or zstandard.open: the one cannot say how far it has read, and the other takes a cut file for a whole.
    """
    if form == "gzip":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    import zstandard

    # frames made with --long need more than the default window
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj, zstandard.ZstdError


def _text_start(head, path):
    """Bytes to leave out at the front: a UTF-8 byte order mark. InputError where the text is UTF-16."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{name_of(path)}: is UTF-16; logs are read as UTF-8. Try iconv -f UTF-16 -t UTF-8.")
    return 3 if head[:3] == b"\xef\xbb\xbf" else 0


@contextmanager
def _reading(path) -> Iterator[BinaryIO]:
    """The file, or stdin, which stays open; InputError where it can't be opened or read."""
    try:
        if path == STDIN:
            if sys.stdin is None:
                raise InputError("stdin: is closed.")
            yield sys.stdin.buffer
        else:
            with open(path, "rb") as file:
                yield file
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path, error):
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: no such file or directory.")
    return InputError(f"{path}: can't be read: {error.strerror or type(error).__name__}.")
