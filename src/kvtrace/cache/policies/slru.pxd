cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.queue cimport Queue


@cython.final
cdef class SLRU(Policy):
    cdef Queue probation
    cdef Queue protected
    cdef Py_ssize_t room  # maximum blocks of the protected segment
    cdef signed char[::1] hit  # block -> 1 if it was hit and not demoted since
