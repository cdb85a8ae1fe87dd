cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.hierarchical_bitset cimport HierarchicalBitset


@cython.final
cdef class Belady(Policy):
    cdef long long[::1] start
    cdef int[::1] depth
    cdef Py_ssize_t ids  # number of blocks in prompts; higher numbers are output blocks, which are never used again
    cdef int[::1] next_use  # position in a path -> the next request that uses the block there
    cdef int[::1] due  # block -> the next request that uses it
    cdef int[::1] oldest  # queue of a request -> its oldest block, or NONE
    cdef int[::1] newest
    cdef int[::1] after  # block -> the next block in its queue
    cdef int[::1] before
    cdef HierarchicalBitset filled  # non-empty queues
