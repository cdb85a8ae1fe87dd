cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.masked_fifo cimport MaskedFifo
from kvtrace.cache.structures.queue cimport Queue
from kvtrace.cache.structures.recency cimport Recency


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
