cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo
from kvtrace.cache.structures.queue cimport Slots, Queue

cdef enum:
    SMALL = 0  # the tags of the lines
    MAIN = 1
    GHOST = 2
    ENOUGH = 2  # hits that take a block from small to main
    MOST = 3  # hits are counted so far

cdef int _hit(MaskedFifo line, int block) except -1 nogil
cdef int _count(MaskedFifo line, int block) except -1 nogil


@cython.final
cdef class S3FIFO(Policy):
    cdef Slots slots
    cdef MaskedFifo small
    cdef MaskedFifo main
    cdef Queue ghosts
    cdef long long small_room
    cdef long long main_room
    cdef long long ghost_room
    cdef bint evicted  # whether anything was, ever

    cdef int _main_victim(self) except -1 nogil
