cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps


@cython.final
cdef class TTL(Policy):
    cdef double limit_ms
    cdef Heaps heap
    cdef double[::1] last_use  # block -> ms
    cdef long long releases
