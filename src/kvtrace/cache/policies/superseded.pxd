cimport cython
from kvtrace.cache.structures.session_hints cimport SessionHints


@cython.final
cdef class Superseded(SessionHints):
    pass
