cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.recency cimport Recency



@cython.final
cdef class Workload(Policy):
    cdef Recency recency
    cdef Heaps heaps  # one per category
    cdef double life_ms
    cdef int[::1] category  # request -> category
    cdef int categories
    cdef double[::1] arrival  # request -> ms
    cdef int[::1] last  # block -> the last request that used it, or NONE; kept after an eviction
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef double[::1] uses
    cdef double[::1] reused
    cdef double[::1] gaps

    cdef double _chance(self, int category, double since_ms) noexcept nogil
