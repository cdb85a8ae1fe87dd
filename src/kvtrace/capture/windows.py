"""Windows of time: when they end, what they are called, and where their files are."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .._base.errors import UsageError
from .spool import SUFFIX

STATE = ".recording"  # the folder of open windows, inside the folder of sealed ones
MIN_WINDOW_S = 1.0
MAX_WINDOW_S = 366 * 86400.0


def require_window(seconds: float) -> float:
    """The length of a window; UsageError if it is not between a second and a year."""
    if not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
        raise UsageError("--window must be at least 1s and at most 366d.")
    return seconds


def end_of_window(now_s: float, window_s: float) -> float:
    """When the window of this moment ends: at a whole multiple of its length since 1970, in UTC.

    >>> end_of_window(7_300.0, 3600.0)
    10800.0
    """
    return (now_s // window_s + 1) * window_s


def window_name(start_s: float) -> str:
    """The name of a window, from its start.

    >>> window_name(1_795_428_000.0)
    'window-20261123T100000Z'
    """
    return time.strftime("window-%Y%m%dT%H%M%SZ", time.gmtime(start_s))


def free_name(folder: Path, start_s: float) -> str:
    """A name of a window that no file in the folder has: a number is added to a name that is taken."""
    taken = {name.split(".")[0] for place in (folder, folder / STATE) for name in os.listdir(place)}
    base = name = window_name(start_s)
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def open_windows(folder: Path) -> list[Path]:
    """The files of windows that are not sealed, oldest first."""
    return sorted((folder / STATE).glob(f"*{SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
