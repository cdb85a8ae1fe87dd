cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.queues cimport Heaps, MaskedFifo, Queue, Recency, Slots


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


@cython.final
cdef class TwoQ(Policy):
    cdef Recency recency
    cdef MaskedFifo arrivals  # A1in
    cdef Queue ghosts  # A1out
    cdef Heaps main  # Am, without its pinned blocks
    cdef signed char[::1] in_main  # resident block -> 1 in Am, 0 in A1in
    cdef long long[::1] stamp  # block of Am -> recency of its last use
    cdef long long arrivals_room  # Kin
    cdef long long ghost_room  # Kout


cdef enum:
    SMALL = 0  # the tags of the queues
    MAIN = 1
    GHOST = 2
    PROMOTE_HITS = 2  # hits that promote a block from small to main
    MAX_HITS = 3  # counts saturate here

cdef int _hit(MaskedFifo queue, int block) except -1 nogil
cdef int _count(MaskedFifo queue, int block) except -1 nogil


@cython.final
cdef class S3FIFO(Policy):
    cdef Slots slots
    cdef MaskedFifo small
    cdef MaskedFifo main
    cdef Queue ghosts
    cdef long long small_room
    cdef long long main_room
    cdef long long ghost_room
    cdef bint evicted  # whether any block was evicted so far

    cdef int _main_victim(self) except -1 nogil


@cython.final
cdef class LFUDA(Policy):
    cdef Heaps heap
    cdef int[::1] count  # block -> uses since it became resident
    cdef long long[::1] last  # block -> the last request that used it
    cdef double age  # an integer
    cdef long long releases


@cython.final
cdef class PGDSF(Policy):
    cdef Recency recency
    cdef Heaps heap
    cdef double[::1] cost  # block -> cost per token
    cdef int[::1] frequency  # block -> uses since it became resident
    cdef double[::1] priority  # block -> an integer, exact up to 2^53
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef double clock
