"""Names of files: `-` for stdin and stdout, suffixes of compressed files, and names that a run refuses.

The suffix of an output's name states its content: a name that states another content is refused. A name without a
suffix, or with one that is not in NAMED, is valid for any content.

No run overwrites its own input: a file that it writes is not one that it reads, nor another one that it writes. Two
names are the same file if they lead to it through links, relative paths or hard links. A folder that is read or written
as a whole, such as a data set, takes all files in it.

A folder has an open handle as well: files in it are opened, renamed and deleted there, even if its path changes
meanwhile.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, Self

from .errors import UsageError, pasted

SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
BUFFER = 1 << 20  # bytes
MAX_LINE = 1 << 28  # bytes of one line of a log or a trace


def is_std(path: str | Path) -> bool:
    """Whether a path is `-`: stdin or stdout."""
    return str(path) == "-"


def is_regular(path: str | Path) -> bool:
    """Whether a path is, or would become, a regular file: not stdout, a pipe or a device."""
    if is_std(path):
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def base_names(*paths: str | Path) -> list[str]:
    """The names of inputs in reports: without their folders, numbered where two are the same.

    >>> base_names("/home/me/day.jsonl", "week/day.jsonl", "-"), base_names("day.dataset/")
    (['day.jsonl', 'day.jsonl (2)', 'stdin'], ['day.dataset'])
    """
    names: list[str] = []
    for path in map(name_of, paths):
        base, number = os.path.basename(path.rstrip("/")) or path, 1
        name = base
        while name in names:
            number += 1
            name = f"{base} ({number})"
        names.append(name)
    return names


def cache_folder() -> Path:
    """The user's cache folder of kvtrace, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtrace"


def name_of(path: str | Path) -> str:
    """The name of an input in messages; of a Trace "trace"."""
    if not isinstance(path, (str, os.PathLike)):
        return "trace"
    return "stdin" if is_std(path) else str(path)


def share_of(text: str) -> tuple[str, float]:
    """The path and the share of `PATH:SHARE`; the share is 1 if it is missing, or if a file has the whole name.

    Raises:
        UsageError: The share is a number, but not above 0.

    >>> share_of("chats.json:0.7"), share_of("chats.json"), share_of("chats:v2.json")
    (('chats.json', 0.7), ('chats.json', 1.0), ('chats:v2.json', 1.0))
    """
    path, colon, number = text.rpartition(":")
    try:
        share = float(number)
    except ValueError:
        return text, 1.0
    if not colon or not path or is_std(text) or os.path.exists(text):
        return text, 1.0
    if not (isfinite(share) and share > 0):
        raise UsageError(f"{text}: the share must be above 0. Example: {path}:0.3.")
    return path, share


class Content(Enum):
    """The content of an output: its name in messages, and its suffixes, the usual one first."""

    JSON_LINES = ("JSON lines", (".jsonl", ".ndjson"))
    JSON = ("JSON", (".json",))
    CSV = ("CSV", (".csv",))
    PARQUET = ("Parquet", (".parquet", ".pq"))
    HTML = ("HTML", (".html", ".htm"))
    MARKDOWN = ("Markdown", (".md", ".markdown"))
    DATASET = ("a data set", (".dataset",))
    SESSIONS = ("a folder of sessions", (".sessions",))
    ORACLE_GENERAL = ("oracleGeneral", (".oracleGeneral", ".oraclegeneral"))

    def __init__(self, words: str, suffixes: tuple[str, ...]) -> None:
        self.words, self.suffixes = words, suffixes


OTHERS = {
    ".tsv": "tab-separated values", ".xlsx": "Excel", ".xls": "Excel", ".pdf": "PDF", ".png": "PNG", ".svg": "SVG",
    ".jpg": "JPEG", ".jpeg": "JPEG", ".arrow": "Arrow", ".feather": "Arrow", ".avro": "Avro", ".orc": "ORC",
    ".xml": "XML", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".pickle": "pickle", ".pkl": "pickle",
    ".npy": "NumPy", ".npz": "NumPy", ".sqlite": "SQLite", ".db": "a database", ".docx": "Word",
}  # fmt: skip
NAMED = {suffix: content.words for content in Content for suffix in content.suffixes} | OTHERS
PACKED = {
    ".gz": ".gz", ".gzip": ".gz", ".tgz": ".gz", ".zst": ".zst", ".zstd": ".zst", ".bz2": ".gz", ".xz": ".gz",
    ".lz4": ".zst", ".br": ".gz", ".lzma": ".gz", ".zip": ".gz", ".7z": ".gz", ".tar": ".gz", ".rar": ".gz",
}  # fmt: skip


def require_name(path: str | Path, content: Content, writer: str, *, option: str = "-o") -> None:
    """UsageError if the suffix of a name states another content, or a compression that would not happen.

    Args:
        path: The name of an output.
        content: What it will hold.
        writer: What writes that, as the subject of a sentence: "the format parquet", "a report".
        option: The option that names the output.

    Raises:
        UsageError: The name contradicts the content; the message has a name that does not.

    >>> require_name("day.jsonl", Content.PARQUET, "the format parquet")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: day.jsonl: the suffix stands for JSON lines, but the format parquet is Parquet. \
Use -o day.parquet.
    """
    if not (is_regular(path) or os.path.isdir(path)):  # stdout, a pipe or a device
        return
    folder, base = os.path.split(str(path).rstrip(os.sep))
    stem, suffix = os.path.splitext(base)
    packing = suffix if suffix.lower() in PACKED else ""
    plain, inner = os.path.splitext(stem) if packing else (stem, suffix)
    stated = NAMED.get(inner.lower())
    if stated is not None and inner.lower() not in content.suffixes:
        packing = "" if content is Content.DATASET else packing and PACKED[packing.lower()]
        name = _free(os.path.join(folder, plain), content.suffixes[0] + packing)
        raise UsageError(
            f"{path}: the suffix stands for {stated}, but {writer} is {content.words}. Use {option} {pasted(name)}."
        )
    if packing and content is Content.DATASET:
        name = os.path.join(folder, stem)
        raise UsageError(f"{path}: a data set is a folder, which is not compressed. Use {option} {pasted(name)}.")
    if packing and packing not in SUFFIXES:
        name = _free(os.path.join(folder, plain), (inner or content.suffixes[0]) + PACKED[packing.lower()])
        raise UsageError(f"{path}: the file would not be compressed as {packing}. Use {option} {pasted(name)}.")


def _free(stem: str, suffix: str) -> str:
    """A name that no file has: it could be the input."""
    number, name = 1, stem + suffix
    while os.path.exists(name):
        number += 1
        name = f"{stem}-{number}{suffix}"
    return name


@dataclass(frozen=True)
class NamedFile:
    """A file of a run, by the option that names it.

    >>> NamedFile("-o", "day.jsonl").words, NamedFile("-o", "day.jsonl.meta.json", part="sidecar").words
    ('-o day.jsonl', 'the sidecar of -o (day.jsonl.meta.json)')
    """

    option: str
    path: str | Path
    part: str = ""  # what the file is to the one that the option names, such as its sidecar
    is_whole: bool = False  # a folder that is read, replaced or removed with all files in it

    @property
    def words(self) -> str:
        """The file in a message."""
        return f"the {self.part} of {self.option} ({self.path})" if self.part else f"{self.option} {self.path}"


def require_distinct(inputs: Iterable[NamedFile], outputs: Iterable[NamedFile]) -> None:
    """UsageError if an output is the same file as an input or as another output.

    Args:
        inputs: The files that are read. Those that do not exist are ignored.
        outputs: The files that are written, whether they exist or not.

    Raises:
        UsageError: An output would overwrite an input, or another output.

    >>> require_distinct([], [NamedFile("-o", "day.jsonl"), NamedFile("--rejects", "./day.jsonl")])
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: --rejects ./day.jsonl is the same file as -o day.jsonl. Choose another name for \
--rejects.
    """
    read = [_place(file) for file in inputs if not is_std(file.path)]
    taken = [(place, False) for place in read if place is not None and place.number is not None]
    for file in outputs:
        place = _place(file)
        if place is None:
            continue
        for other, is_output in taken:
            if relation := place.relation(other):
                raise UsageError(_message(file, relation, other.file, is_output))
        taken.append((place, True))


@dataclass(frozen=True)
class _Place:
    """The place to which the name of a file leads."""

    file: NamedFile
    path: str
    number: tuple[int, int] | None  # device and inode; None if the file does not exist

    def relation(self, other: _Place) -> str:
        """The relation of this place to another one, in words; empty if they do not overlap."""
        if self.path == other.path or (self.number is not None and self.number == other.number):
            return "is the same file as"
        if other.file.is_whole and _is_inside(self.path, other.path):
            return "is inside"
        return "contains" if self.file.is_whole and _is_inside(other.path, self.path) else ""


def _place(file: NamedFile) -> _Place | None:
    """The place of a file; None for a pipe, a device and a URL."""
    number = None
    if is_std(file.path):
        with suppress(OSError, ValueError, AttributeError):  # no stdout, or a test's
            number = _number(os.fstat(sys.stdout.fileno()))  # `>> day.jsonl`
        return _Place(file, "-", number)
    if "://" in str(file.path) or not (is_regular(file.path) or os.path.isdir(file.path)):
        return None
    with suppress(OSError):
        number = _number(os.stat(file.path))
    return _Place(file, os.path.realpath(file.path), number)


def _number(status: os.stat_result) -> tuple[int, int] | None:
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _message(file: NamedFile, relation: str, other: NamedFile, is_output: bool) -> str:
    if is_std(file.path) and is_std(other.path):
        return f"{file.option} and {other.option} both write to stdout. Name a file for one of them."
    fate = "" if is_output else " and would overwrite it" if relation == "is the same file as" else ""
    return f"{file.words} {relation} {other.words}{fate}. Choose another name for {file.option}."


HAS_HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")  # not on Windows: paths are used there
PLAIN = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"))  # flags of each open


class FolderHandle:
    """An open folder. OSError if its path is not a folder, or its last name is a link.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path, FolderHandle(path) as folder:
    ...     os.close(folder.create("note", 0o600))
    ...     os.symlink("note", os.path.join(path, "link"))
    ...     folder.open("link", os.O_RDONLY)
    Traceback (most recent call last):
    OSError: [Errno 40] Too many levels of symbolic links: 'link'
    """

    def __init__(self, path: str | os.PathLike[str], parent: FolderHandle | None = None):
        self._path: str = os.fspath(path) if parent is None else os.path.join(parent._path, path)
        self._handle = -1
        if HAS_HANDLES:
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | PLAIN, **({} if parent is None else parent._at))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the handle; the folder stays."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def folder(self, name: str) -> FolderHandle:
        """A folder in it."""
        return FolderHandle(name, self)

    def make_folder(self, name: str) -> None:
        """Make a folder that only its owner can enter, unless there is one."""
        with suppress(FileExistsError):
            os.mkdir(self._name(name), 0o700, **self._at)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """A handle of a file in it; OSError if the name is a link."""
        return os.open(self._name(name), flags | PLAIN, mode, **self._at)

    def create(self, name: str, mode: int) -> int:
        """A handle of a new file, to write; OSError if the name exists."""
        return self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

    def about(self, name: str) -> os.stat_result:
        """The status of the file with a name; links are not followed."""
        return os.lstat(self._name(name)) if self._handle < 0 else os.stat(name, follow_symlinks=False, **self._at)

    def replace(self, old: str, new: str) -> None:
        """Rename a file; it replaces a file or link of that name."""
        if self._handle < 0:
            os.replace(self._name(old), self._name(new))
        else:
            os.replace(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def unlink(self, name: str) -> None:
        """Delete a file or a link."""
        os.unlink(self._name(name), **self._at)

    def remove_folder(self, name: str) -> None:
        """Delete a folder with its files."""
        shutil.rmtree(self._name(name), ignore_errors=True, **self._at)

    def names(self) -> list[str]:
        """The names of the files in it."""
        return os.listdir(self._path if self._handle < 0 else self._handle)

    def status(self) -> os.stat_result:
        """The status of the folder itself."""
        return os.lstat(self._path) if self._handle < 0 else os.fstat(self._handle)

    def chmod(self, mode: int) -> None:
        """Set its mode."""
        os.chmod(self._path if self._handle < 0 else self._handle, mode)

    def sync(self) -> None:
        """Flush the names in it to the disk."""
        if self._handle >= 0:
            with suppress(OSError):  # some file systems do not support fsync of a folder
                os.fsync(self._handle)

    @property
    def _at(self) -> dict[str, Any]:
        """The handle as an argument of os's functions."""
        return {} if self._handle < 0 else {"dir_fd": self._handle}

    def _name(self, name: str) -> str:
        return name if self._handle >= 0 else os.path.join(self._path, name)
