cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.queue cimport Queue


@cython.final
cdef class LRU(Policy):
    cdef Queue queue
