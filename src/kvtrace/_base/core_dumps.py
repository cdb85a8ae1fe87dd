"""No core dumps: the memory of a process that reads a log holds its text, and a dump would write it to a disk."""

from __future__ import annotations

import sys

PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """From here on, a crash of this process or of its children writes no memory to a disk.

    On Linux, other processes of the user cannot read its memory either. A process that executes another program, as
    spawned workers do, must call this again. Systems without such limits are left as they are.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass  # no limits here, or not ours to set
    if sys.platform == "linux":
        prctl(PR_SET_DUMPABLE, 0)  # a handler of dumps, such as systemd's, ignores the limit


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process on Linux."""
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
