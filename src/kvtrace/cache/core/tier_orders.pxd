from kvtrace.cache.core.tier_blocks cimport TierBlocks
from kvtrace.cache.structures.heap cimport Heaps

cdef enum:
    ONCE = 0  # the lists of ARC
    OFTEN = 1
    GHOSTS_ONCE = 2
    GHOSTS_OFTEN = 3


cdef class TierOrder:
    cdef int miss(self, int block) except -1
    cdef int insert(self, Py_ssize_t row, int block, int place) except -1
    cdef int access(self, Py_ssize_t row, int block, int place, bint present) except -1
    cdef int finish(self, int block, int marks) except -1
    cdef int pin(self, int block) except -1
    cdef int unpin(self, int block) except -1
    cdef list victims(self, long long count, TierBlocks tier)


cdef class LeastRecent(TierOrder):
    cdef Heaps heap
    cdef long long[::1] rank_of  # row -> its rank, 0 = none yet
    cdef long long ranks
    cdef double _rank(self, Py_ssize_t row) noexcept
    cdef int _move(self, int block, double rank, long long tiebreak) except -1


cdef class AdaptiveReplacement(TierOrder):
    cdef long long capacity
    cdef int blocks  # the first sentinel
    cdef double target
    cdef int[::1] next
    cdef int[::1] previous
    cdef signed char[::1] list_of  # block -> the list that has it + 1, 0 = none
    cdef long long[::1] size
    cdef int _evictable_from(self, int block, TierBlocks tier) noexcept
    cdef void _trim(self, int ghosts) noexcept
    cdef int _append(self, int name, int block) noexcept
    cdef void _leave(self, int block) noexcept
