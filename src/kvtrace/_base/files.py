"""Names of files: `-` for stdin and stdout, and suffixes of compressed files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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


def name_of(path: str | Path) -> str:
    """The name of an input in messages."""
    return "stdin" if is_std(path) else str(path)
