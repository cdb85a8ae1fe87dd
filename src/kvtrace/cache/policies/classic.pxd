cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.queues cimport Heaps, HierarchicalBitset, MaskedFifo, Queue, Recency


@cython.final
cdef class LRU(Policy):
    cdef Queue queue


@cython.final
cdef class MRU(Policy):
    cdef int[::1] earlier  # block -> the block released just before it, or NONE
    cdef int[::1] later  # block -> the block released just after it, or NONE
    cdef signed char[::1] listed  # block -> 1 while it is evictable
    cdef int last  # the last released block, or NONE


@cython.final
cdef class FIFO(Policy):
    cdef MaskedFifo queue


cdef enum:
    NEAR = 16  # least distance in places from the hand to the block that `likely_victim` returns
    FAR = 80  # and the greatest


@cython.final
cdef class Sieve(Policy):
    cdef MaskedFifo queue
    cdef int hand  # the block that the hand points at; NONE: the oldest block
    cdef int hand_place  # the place of the last victim
    cdef int hinted  # `likely_victim` has looked at all places before this one


@cython.final
cdef class SLRU(Policy):
    cdef Queue probation
    cdef Queue protected
    cdef Py_ssize_t room  # maximum blocks of the protected segment
    cdef signed char[::1] hit  # block -> 1 if it was hit and not demoted since


cdef enum:
    MAX_COUNT = 1 << 24  # counts saturate here, so that the table of lists stays small
    STEPS = 3  # list entries between the victim and the block that is prefetched
    BEFORE = 0  # columns of `state`: the previous block in the list,
    AFTER = 1  # the next block in the list,
    COUNT = 2  # the uses,
    LISTED = 3  # and 1 if the block is in the list of that count


@cython.final
cdef class LFU(Policy):
    cdef int[:, ::1] state  # block -> BEFORE, AFTER, COUNT, LISTED, side by side in memory
    cdef int[::1] oldest  # count -> the first block of its list
    cdef int[::1] newest  # count -> the last block of its list, or NONE
    cdef HierarchicalBitset counts  # counts with a non-empty list


@cython.final
cdef class TTL(Policy):
    cdef double limit_ms
    cdef Heaps heap
    cdef double[::1] last_use  # block -> ms
    cdef long long releases


@cython.final
cdef class Mooncake(Policy):
    cdef double lease_ms
    cdef Heaps heap
    cdef double[::1] deadline  # block -> ms
    cdef long long[::1] order  # block -> its last use among all
    cdef long long uses, resident
    cdef long long due  # blocks that the present pass has still to evict
    cdef int _note(self, int block, double deadline) noexcept nogil


@cython.final
cdef class Priority(Policy):
    cdef Recency recency
    cdef double duration_ms
    cdef double[::1] request_priority  # request -> its priority
    cdef double[::1] priority  # block -> priority
    cdef double[::1] last_use  # block -> ms
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef Heaps order
    cdef Heaps expiring  # evictable blocks with a priority other than 35, by the time when it returns to 35


@cython.final
cdef class Belady(Policy):
    cdef long long[::1] start
    cdef int[::1] depth
    cdef Py_ssize_t ids  # number of blocks in prompts; higher numbers are output blocks, which are never used again
    cdef int[::1] next_use  # position in a path -> the next request that uses the block there
    cdef int[::1] due  # block -> the next request that uses it
    cdef int[::1] oldest  # queue of a request -> its oldest block, or NONE
    cdef int[::1] newest
    cdef int[::1] after  # block -> the next block in its queue
    cdef int[::1] before
    cdef HierarchicalBitset filled  # non-empty queues
