cimport cython
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.session_hints cimport SessionHints


@cython.final
cdef class Retain(SessionHints):
    cdef double duration_ms
    cdef Heaps deadlines  # paused agents
    cdef double[::1] priority  # request -> its priority
