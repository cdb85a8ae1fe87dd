cimport cython
from kvtrace.cache.structures.heap cimport Heaps


@cython.final
cdef class Shelves:
    cdef Heaps blocks  # a heap of blocks for each shelf
    cdef Heaps order  # shelves that are not empty, by rank and then by their least recent block
    cdef double[::1] rank
    cdef bint holds(self, int block) noexcept nogil
    cdef int put(self, int shelf, int block, long long stamp) except -1 nogil
    cdef int drop(self, int block) except -1 nogil
    cdef int move(self, int block, int shelf) except -1 nogil
    cdef int set_rank(self, int shelf, double rank) except -1 nogil
    cdef int first(self) noexcept nogil
    cdef int _reorder(self, int shelf) except -1 nogil
