cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps



@cython.final
cdef class LFUDA(Policy):
    cdef Heaps heap
    cdef int[::1] count  # block -> uses since it became resident
    cdef long long[::1] last  # block -> the last request that used it
    cdef double age  # an integer
    cdef long long releases
