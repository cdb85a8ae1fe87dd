cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.hierarchical_bitset cimport HierarchicalBitset

cdef enum:
    MOST = 1 << 24  # uses are counted so far, so that the table of lists stays small
    STEPS = 3  # from the victim to the one that is fetched
    BEFORE = 0  # what a block's four numbers are: its neighbours in its list,
    AFTER = 1
    COUNT = 2  # its uses,
    LISTED = 3  # and whether it is in the list of that count


@cython.final
cdef class LFU(Policy):
    cdef int[:, ::1] state  # block -> BEFORE, AFTER, COUNT, LISTED, side by side in memory
    cdef int[::1] oldest  # count -> the first of its list
    cdef int[::1] newest  # count -> the last of its list, or NONE
    cdef HierarchicalBitset counts  # those whose list is not empty
