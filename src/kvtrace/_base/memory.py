"""Memory bounds, term by term, and the return of freed memory to the system."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UsageError
from .units import size_bytes

MB = 10**6
MMAP_THRESHOLD = -3  # of mallopt
PROGRAM = 100 * MB  # Python and its libraries
PIECE = 100 * MB  # a decompressed piece of the trace, and arrays derived from it


@dataclass(frozen=True)
class MemoryNeed:
    """A memory bound: bytes for each purpose; `beyond` names a part without a known bound."""

    terms: dict[str, int]
    remedy: str = "Use a machine with more memory"
    beyond: str | None = None

    @property
    def total(self) -> int:
        """The sum in bytes."""
        return sum(self.terms.values())

    def __str__(self) -> str:
        terms = ", ".join(f"{_mb(size)} {purpose}" for purpose, size in self.terms.items() if size >= MB / 2)
        if self.beyond:
            return f"needs {_mb(self.total)}: {terms}; and an unknown amount for {self.beyond}"
        return f"needs at most {_mb(self.total)}: {terms}"

    def require(self, max_bytes: int | None) -> None:
        """UsageError if the bound exceeds `max_bytes` (None = no limit), or is not known."""
        if max_bytes is None:
            return
        if self.beyond:
            raise UsageError(
                f"--memory is not supported with {self.beyond}: its memory use is not known in advance. Omit --memory."
            )
        if self.total > max_bytes:
            raise UsageError(f"--memory is {_mb(max_bytes)}, but this {self}. {self.remedy}.")


def parse_memory(text: str) -> int:
    """A size such as 2GB, 800MB or 1.5GiB in bytes; UsageError if it is not valid.

    >>> parse_memory("800MB"), parse_memory("1.5 GiB")
    (800000000, 1610612736)
    """
    return size_bytes(text, "memory size")


def keep_little() -> None:
    """Make glibc return freed arrays to the system at once; the bounds rely on it.

    By default glibc caches freed arrays of up to 32 MB, so the process keeps growing.
    """
    libc = _libc()
    if libc is not None:
        libc.mallopt(MMAP_THRESHOLD, 1 << 18)


def give_back() -> None:
    """Make glibc return the freed memory that it caches now."""
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
