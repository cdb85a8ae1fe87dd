"""C memory that can grow. Raises MemoryError if there is none. The owner frees it with C's free."""

import cython
from cython.cimports.libc.stdlib import calloc, realloc


def zeros(size):
    """Allocate `size` bytes set to 0."""
    memory: cython.p_void = calloc(1, size if size else 1)
    if memory == cython.NULL:
        raise MemoryError
    return memory


def resized(memory, size):
    """Resize a buffer to `size` bytes and keep its content; new bytes are not initialized."""
    grown: cython.p_void = realloc(memory, size if size else 1)
    if grown == cython.NULL:
        raise MemoryError
    return grown
