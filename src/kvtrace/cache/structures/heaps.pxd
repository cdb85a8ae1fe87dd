cimport cython
from kvtrace.cache.policies.base cimport Context


cdef class Heaps:
    cdef double[::1] key
    cdef long long[::1] tiebreak
    cdef int[::1] child
    cdef int[::1] after
    cdef int[::1] before
    cdef int[::1] root
    cdef int[::1] heap_of
    cdef int put(self, int heap, int block, double key, long long tiebreak) except -1 nogil
    cdef int drop(self, int block) except -1 nogil
    cdef bint holds(self, int block) noexcept nogil
    cdef int first(self, int heap) noexcept nogil
    cdef int _meld(self, int root, int other) noexcept nogil
    cdef int _gather(self, int first) noexcept nogil


@cython.final
cdef class Recency:
    cdef Context context
    cdef int[::1] depth
    cdef long long stamp(self, int block) noexcept nogil
