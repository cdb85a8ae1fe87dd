cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.recency cimport Recency


@cython.final
cdef class PGDSF(Policy):
    cdef Recency recency
    cdef Heaps heap
    cdef double[::1] cost  # block -> what a token of it costs
    cdef int[::1] frequency  # block -> uses since it became resident
    cdef double[::1] priority  # block -> whole number, exact up to 2^53
    cdef long long[::1] stamp  # block -> when it was used last
    cdef double clock
