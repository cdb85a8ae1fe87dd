cimport cython
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.running_quantile cimport RunningQuantile


@cython.final
cdef class Pauses:
    cdef RunningQuantile times
    cdef Heaps deadlines  # paused agents with a deadline
    cdef double[::1] since  # agent -> when its tool began, ms; -1 if no tool runs
    cdef signed char[::1] is_tool  # request -> whether a tool runs after it
    cdef bint paused(self, int agent, Py_ssize_t row, double now) except -1 nogil
    cdef int resumed(self, int agent, double now) except -1 nogil
    cdef int expired(self, double now) except? -1 nogil
