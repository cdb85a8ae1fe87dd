"""Memory: how much something needs, term by term, and how freed memory goes back to the system."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import UsageError
from .units import BYTES

MB = 10**6
MMAP_THRESHOLD = -3  # of mallopt
PROGRAM = 100 * MB  # Python and its libraries
PIECE = 100 * MB  # a piece of the trace, unpacked, and what is made of it


@dataclass(frozen=True)
class Need:
    """Bytes of each thing that is kept; `beyond` names what no bound is known for."""

    terms: dict[str, int]
    remedy: str = "Try a machine with more memory"
    beyond: str | None = None

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return sum(self.terms.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{_mb(size)} {what}" for what, size in self.terms.items() if size >= MB / 2)
        if self.beyond:
            return f"needs {_mb(self.total)}: {parts}; and what {self.beyond} takes, which is not known before"
        return f"needs at most {_mb(self.total)}: {parts}"

    def require(self, most: int | None) -> None:
        """UsageError where that is more than `most` bytes, or nobody knows."""
        if most is None:
            return
        if self.beyond:
            raise UsageError(f"what {self.beyond} takes is not known before, so --memory can't be kept. Leave it out.")
        if self.total > most:
            raise UsageError(f"--memory is {_mb(most)}, but this {self}. {self.remedy}.")


def parse_memory(text: str) -> int:
    """Bytes, as in 2GB, 800MB or 1.5GiB; UsageError where they are none.

    >>> parse_memory("800MB"), parse_memory("1.5 GiB")
    (800000000, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([a-zA-Z]+)\s*", text)
    if not found or found[2].lower() not in BYTES:
        raise UsageError(f"{text!r} is no size of memory. Try 2GB, 800MB or 1.5GiB.")
    return int(float(found[1]) * BYTES[found[2].lower()])


def keep_little() -> None:
    """Let freed arrays of this process go back to the system at once, where its C library can: bounds count on it.

    glibc otherwise keeps freed arrays of up to 32 MB for later, so that the process grows with what it has let go.
    """
    libc = _libc()
    if libc is not None:
        libc.mallopt(MMAP_THRESHOLD, 1 << 18)


def give_back() -> None:
    """Give the system what the C library has kept of freed memory until now."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def _libc():
    """The C library, if it is glibc."""
    import ctypes
    import sys

    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "malloc_trim") else None


def _mb(size) -> str:
    return f"{-(-size // MB):,} MB"
