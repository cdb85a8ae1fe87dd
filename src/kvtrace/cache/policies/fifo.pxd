cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo


@cython.final
cdef class FIFO(Policy):
    cdef MaskedFifo queue
