cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.hierarchical_bitset cimport HierarchicalBitset


@cython.final
cdef class Belady(Policy):
    cdef long long[::1] start
    cdef int[::1] depth
    cdef Py_ssize_t ids  # block numbers of the trace; those above are grown, and never used again
    cdef int[::1] next_use  # where a block stands in a path -> the next request that wants it
    cdef int[::1] due  # block -> the next request that wants it
    cdef int[::1] oldest  # queue of a request -> its first block, or NONE
    cdef int[::1] newest
    cdef int[::1] after  # block -> the one that joined its queue after it
    cdef int[::1] before
    cdef HierarchicalBitset filled  # the queues that are not empty
