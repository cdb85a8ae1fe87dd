cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.structures.queues cimport Heaps


cdef enum:
    ABSENT = 0  # the states of a block in the tier
    WRITING = 1
    IDLE = 2
    SEEN = 1  # what the tier knows of a block of a request
    STORED = 2
    REUSED = 4
    MISSED = 8
    ASKED = 16  # the request has asked the pool for the block
    PROMOTED = 32  # and got it from there


cdef class TierBlocks:
    cdef int[::1] state
    cdef int[::1] given  # block -> the last offer that had it
    cdef int offers

    cdef bint is_evictable(self, int block) noexcept nogil


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
    cdef int remove(self, int block) except -1
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


@cython.final
cdef class LowerTier(TierBlocks):
    cdef readonly Engine above
    cdef readonly long long capacity, size, idle, evictions
    cdef public double fetch_seconds, store_seconds  # of a block
    cdef TierOrder order
    cdef readonly int[::1] hits
    cdef dict marks
    cdef public object pool, pool_hits

    cdef int block_at(self, Py_ssize_t row, int place) noexcept nogil
    cdef int prepare_load(self, Py_ssize_t row, int first, int end) except -1
    cdef bint prepare_store(self, Py_ssize_t row, int first, int end, list absent) except -1
    cdef int complete(self, list blocks, bint is_load) except -1
    cdef int hold(self, list blocks) except -1
    cdef int remove(self, int block) except -1
    cdef int finish(self, Py_ssize_t row) except -1
    cdef bint _evict(self, long long count) except -1
    cdef bytearray _marks(self, Py_ssize_t row)
    cdef int _see(self, Py_ssize_t row, int place, bytearray marks) except -1
