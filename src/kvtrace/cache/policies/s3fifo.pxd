cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo
from kvtrace.cache.structures.queue cimport Slots, Queue

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
