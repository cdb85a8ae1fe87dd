"""C memory that grows: MemoryError where there is none. Whoever holds it gives it back with C's free."""

import cython

if cython.compiled:
    from cython.cimports.libc.stdlib import calloc, realloc


@cython.cfunc
@cython.exceptval(check=True)
def zeros(size: cython.size_t) -> cython.p_void:
    """So many bytes, all of them 0."""
    memory: cython.p_void = calloc(1, size if size else 1)
    if memory == cython.NULL:
        raise MemoryError
    return memory


@cython.cfunc
@cython.exceptval(check=True)
def resized(memory: cython.p_void, size: cython.size_t) -> cython.p_void:
    """The same bytes in so much room; what is new is not set."""
    grown: cython.p_void = realloc(memory, size if size else 1)
    if grown == cython.NULL:
        raise MemoryError
    return grown
