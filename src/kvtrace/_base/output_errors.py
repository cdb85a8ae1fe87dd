"""Errors of files that cannot be written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import KvtraceError, StoppedError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space: on the disk, for this user, in this file


def unwritable(path: str | Path, error: OSError, rest: str = "") -> KvtraceError:
    """The error for a file that cannot be written; a StoppedError if the disk is full, because that can be fixed.

    >>> raise unwritable("day.jsonl", OSError(errno.ENOSPC, "No space left on device"))
    Traceback (most recent call last):
    kvtrace._base.errors.StoppedError: day.jsonl: cannot be written (No space left on device).
    """
    kind = StoppedError if error.errno in FULL else KvtraceError
    return kind(f"{path}: cannot be written ({error.strerror or type(error).__name__}).{rest}")


@contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """Turn errors of a file that is written into errors with its name."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None
