cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo

cdef enum:
    NEAR = 16  # least distance in places from the hand to the block that `likely_victim` returns
    FAR = 80  # and the greatest


@cython.final
cdef class Sieve(Policy):
    cdef MaskedFifo queue
    cdef int hand  # the block that the hand points at; NONE: the oldest block
    cdef int hand_place  # the place of the last victim
    cdef int hinted  # `likely_victim` has looked at all places before this one
