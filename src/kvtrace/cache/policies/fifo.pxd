cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport Line


@cython.final
cdef class FIFO(Policy):
    cdef Line line
