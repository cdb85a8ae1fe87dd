cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.hierarchical_bitset cimport HierarchicalBitset

cdef enum:
    MAX_COUNT = 1 << 24  # counts saturate here, so that the table of lists stays small
    STEPS = 3  # list entries between the victim and the block that is prefetched
    BEFORE = 0  # columns of `state`: the previous block in the list,
    AFTER = 1  # the next block in the list,
    COUNT = 2  # the uses,
    LISTED = 3  # and 1 if the block is in the list of that count


@cython.final
cdef class LFU(Policy):
    cdef int[:, ::1] state  # block -> BEFORE, AFTER, COUNT, LISTED, side by side in memory
    cdef int[::1] oldest  # count -> the first block of its list
    cdef int[::1] newest  # count -> the last block of its list, or NONE
    cdef HierarchicalBitset counts  # counts with a non-empty list
