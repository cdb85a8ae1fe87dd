cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.recency cimport Recency



@cython.final
cdef class Priority(Policy):
    cdef Recency recency
    cdef double duration_ms
    cdef double[::1] request_priority  # request -> its priority
    cdef double[::1] priority  # block -> priority
    cdef double[::1] last_use  # block -> ms
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef Heaps order
    cdef Heaps expiring  # evictable blocks with a priority other than 35, by the time when it returns to 35
