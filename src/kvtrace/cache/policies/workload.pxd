cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.recency cimport Recency



@cython.final
cdef class Workload(Policy):
    cdef Recency recency
    cdef Heaps heaps  # one a category
    cdef double life_ms
    cdef int[::1] category  # request -> category
    cdef int categories
    cdef double[::1] arrival  # request -> ms
    cdef int[::1] last  # block -> the request that used it last, or NONE; also of blocks that are gone
    cdef long long[::1] stamp  # block -> when it was used last
    cdef double[::1] uses
    cdef double[::1] reused
    cdef double[::1] gaps

    cdef double _chance(self, int which, double since_ms) noexcept nogil
