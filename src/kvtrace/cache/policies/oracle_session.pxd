cimport cython
from kvtrace.cache.structures.session_hints cimport SessionHints


@cython.final
cdef class OracleSession(SessionHints):
    cdef const double[::1] arrival
    cdef Py_ssize_t[::1] next_row
