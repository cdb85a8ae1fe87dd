cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo
from kvtrace.cache.structures.queue cimport Queue


@cython.final
cdef class ARC(Policy):
    cdef MaskedFifo once  # T1, without the blocks in `noted`
    cdef MaskedFifo again  # T2, without the blocks in `noted`
    cdef Queue once_ghosts  # B1
    cdef Queue again_ghosts  # B2
    cdef int[::1] noted  # blocks of the current request, root first; they join their queues in reverse order
    cdef signed char[::1] is_again  # resident block -> 1 in T2, 0 in T1
    cdef int noted_count
    cdef Py_ssize_t request  # the request of the noted blocks
    cdef long long in_once  # |T1|
    cdef long long in_again  # |T2|
    cdef double target  # p
    cdef bint returning  # the missed block had a ghost
    cdef bint from_again  # and that ghost was in B2

    cdef int _count(self, int block) except -1 nogil
    cdef int _trim(self) except -1 nogil
    cdef int _note(self, int block) except -1 nogil
    cdef int _settle(self) except -1 nogil
