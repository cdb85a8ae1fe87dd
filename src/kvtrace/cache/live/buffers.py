"""C memory that grows: MemoryError where there is none. The owner releases it with C's free."""

import cython
from cython.cimports.libc.stdlib import calloc, realloc


def zeros(size):
    """So many bytes, all of them 0."""
    memory: cython.p_void = calloc(1, size if size else 1)
    if memory == cython.NULL:
        raise MemoryError
    return memory


def resized(memory, size):
    """The same bytes in so much room; what is new is not set."""
    grown: cython.p_void = realloc(memory, size if size else 1)
    if grown == cython.NULL:
        raise MemoryError
    return grown
