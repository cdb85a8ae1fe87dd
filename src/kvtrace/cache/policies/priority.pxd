cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.recency cimport Recency



@cython.final
cdef class Priority(Policy):
    cdef Recency recency
    cdef double duration_ms
    cdef double[::1] asked  # request -> its priority
    cdef double[::1] priority  # block -> priority
    cdef double[::1] last_use  # block -> ms
    cdef long long[::1] stamp  # block -> when it was used last
    cdef Heaps order
    cdef Heaps lasting  # evictable blocks whose priority will fall back, by the time when it does
