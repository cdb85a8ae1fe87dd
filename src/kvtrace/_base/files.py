"""Names of files: `-` for stdin and stdout, and suffixes of compressed files."""

from __future__ import annotations

import os
import stat
from math import isfinite
from pathlib import Path

from .errors import UsageError

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
    """The name of an input in messages."""
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
