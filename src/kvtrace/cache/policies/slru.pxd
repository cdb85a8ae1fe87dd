cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.queue cimport Queue


@cython.final
cdef class SLRU(Policy):
    cdef Queue probation
    cdef Queue protected
    cdef Py_ssize_t room  # blocks that the protected segment holds at most
    cdef signed char[::1] hit  # block -> 1 when it was hit, and not demoted since
