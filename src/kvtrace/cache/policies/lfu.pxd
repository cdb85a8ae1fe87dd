cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.hierarchical_bitset cimport HierarchicalBitset

cdef int MOST
cdef int STEPS
cdef int BEFORE
cdef int AFTER
cdef int COUNT
cdef int LISTED


@cython.final
cdef class LFU(Policy):
    cdef int[:, ::1] state  # block -> BEFORE, AFTER, COUNT, LISTED, side by side in memory
    cdef int[::1] oldest  # count -> the first of its list
    cdef int[::1] newest  # count -> the last of its list, or NONE
    cdef HierarchicalBitset counts  # those whose list is not empty
