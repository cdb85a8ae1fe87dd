cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.recency cimport Recency


@cython.final
cdef class PGDSF(Policy):
    cdef Recency recency
    cdef Heaps heap
    cdef double[::1] cost  # block -> cost per token
    cdef int[::1] frequency  # block -> uses since it became resident
    cdef double[::1] priority  # block -> an integer, exact up to 2^53
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef double clock
