cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo
from kvtrace.cache.structures.queue cimport Queue


@cython.final
cdef class ARC(Policy):
    cdef MaskedFifo once  # T1, but for the blocks in `noted`
    cdef MaskedFifo again  # T2, but for those
    cdef Queue once_ghosts  # B1
    cdef Queue again_ghosts  # B2
    cdef int[::1] noted  # the blocks of the request being served, in the order wanted: they join their lines in reverse
    cdef signed char[::1] is_again  # resident block -> 1 in T2, 0 in T1
    cdef int noting
    cdef Py_ssize_t request  # the one whose blocks are noted
    cdef long long in_once  # |T1|
    cdef long long in_again  # |T2|
    cdef double target  # p
    cdef bint returning  # the wanted block left a ghost
    cdef bint from_again  # and that was in B2

    cdef int _count(self, int block) except -1 nogil
    cdef int _trim(self) except -1 nogil
    cdef int _note(self, int block) except -1 nogil
    cdef int _settle(self) except -1 nogil
