"""No run overwrites its own input: a file that it writes is not one that it reads, nor another one that it writes.

Two names are the same file if they lead to it through links, relative paths or hard links. A folder that is read or
written as a whole, such as a data set, takes all files in it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import UsageError
from .files import is_regular, is_std


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
