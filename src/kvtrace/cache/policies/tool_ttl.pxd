cimport cython
from kvtrace.cache.structures.pauses cimport Pauses
from kvtrace.cache.structures.session_hints cimport SessionHints


@cython.final
cdef class ToolTTL(SessionHints):
    cdef Pauses pauses
