cimport cython
from kvtrace.cache.policies.base cimport Policy


@cython.final
cdef class MRU(Policy):
    cdef int[::1] earlier  # block -> the block released just before it, or NONE
    cdef int[::1] later  # block -> the block released just after it, or NONE
    cdef signed char[::1] listed  # block -> 1 while it is evictable
    cdef int last  # the last released block, or NONE
