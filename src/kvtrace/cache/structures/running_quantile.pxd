cimport cython
from kvtrace.cache.structures.heap cimport Heaps


@cython.final
cdef class RunningQuantile:
    cdef Heaps heaps  # of values by number: heap 0 has the lowest ones, greatest first; heap 1 the others, least first
    cdef double share
    cdef int count
    cdef int lowest  # values in heap 0
    cdef int add(self, double value) except -1 nogil
    cdef double value(self) noexcept nogil
    cdef int _shift(self, int source, int target) except -1 nogil
