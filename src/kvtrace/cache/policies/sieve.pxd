cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo

cdef enum:
    NEAR = 16  # places between the hand and what `likely_victim` looks at, at least
    FAR = 80  # and at most


@cython.final
cdef class Sieve(Policy):
    cdef MaskedFifo line
    cdef int hand  # the block that the hand points at, or NONE: it begins with the oldest
    cdef int at  # the place where the hand took its block last
    cdef int seen  # how far `likely_victim` has looked
