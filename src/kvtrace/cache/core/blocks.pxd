cimport cython
from kvtrace.cache.core.engine cimport Engine, StepCache


cdef enum:
    NOTHING = -1  # no copy, or no hash


@cython.final
cdef class BlockQueue:
    cdef readonly int capacity  # also the queue's sentinel: the head is next[capacity], the last block previous[capacity]
    cdef readonly int free  # number of physical blocks in the queue
    cdef readonly long long evictions
    cdef bint unhashed_first
    cdef bint newest_copy
    cdef int[::1] next  # physical block -> the next in the queue
    cdef int[::1] previous
    cdef int[::1] pins  # physical block -> number of live requests that hold it
    cdef int[::1] holds  # physical block -> the trace's block that it caches
    cdef int[::1] copy  # the trace's block -> the copy that lookups find
    cdef int[::1] later  # physical block -> the copy registered next; the list is circular
    cdef int[::1] earlier
    # for a router that learns of a step's blocks at its end; empty if nobody watches
    cdef int step  # the present step
    cdef int[::1] changed  # the trace's block -> the last step that cached it (negative) or evicted it, 0 = none

    cdef bint was_cached(self, int block) noexcept nogil
    cdef int _note(self, int block, bint was_cached) noexcept nogil
    cdef int take(self) except -1 nogil
    cdef int pin(self, int physical) except -1 nogil
    cdef int unpin(self, int physical) except -1 nogil
    cdef int register(self, int physical, int block) except -1 nogil
    cdef int _leave(self, int physical) except -1 nogil
    cdef int _join(self, int physical, int follower) except -1 nogil
    cdef int _forget(self, int physical) except -1 nogil
    cdef int _queued(self) except -1 nogil


cdef enum:
    NO_COPY = -1


@cython.final
cdef class BlockPool:
    cdef readonly long long capacity
    cdef readonly long long free  # blocks that no request holds
    cdef readonly long long evictions
    cdef long long blank  # free blocks without content that can be found; they are taken first
    cdef int end  # the sentinel of the list of idle cached blocks: the first to evict is next[end]
    cdef int[::1] next  # cached block -> the next one to evict
    cdef int[::1] previous
    cdef int[::1] pins  # cached block -> number of requests that hold it
    cdef int[::1] key  # cached block -> its key
    cdef int[::1] copy  # key -> the copy that lookups find
    cdef int[::1] later  # cached block -> the copy registered next; the list is circular
    cdef int[::1] earlier
    cdef int[::1] spare  # numbers of cached blocks that are not in use, a stack
    cdef int spares

    cdef int take(self, long long count) except -1 nogil
    cdef int put_back(self, long long count) noexcept nogil
    cdef int register(self, int key) except -1 nogil
    cdef int pin(self, int cached) noexcept nogil
    cdef int unpin(self, int cached) noexcept nogil
    cdef int _leave(self, int cached) noexcept nogil
    cdef int _forget(self, int cached) noexcept nogil


@cython.final
cdef class FreeQueue(Engine):
    cdef BlockQueue queue
    cdef int[::1] held  # the physical blocks of live requests, in order of admission
    cdef long long[::1] begin  # row -> start of its physical blocks in `held`
    cdef long long top
    cdef int dropped  # the last blocks of a hit that are computed again, for a drafter

    cdef int _take(self) except -1 nogil


@cython.final
cdef class PagedCache(StepCache):
    cdef readonly BlockQueue queue
    cdef readonly long long block_size
    cdef const long long[::1] tokens  # row -> tokens of the prompt
    cdef int[::1] held  # the physical blocks of live requests, each request in a part of its own
    cdef long long[::1] begin  # row -> start of its part of `held`
    cdef int[::1] count  # row -> blocks that it holds
    cdef int[::1] published  # row -> leading blocks of these that have their hash
    cdef int[::1] room  # row -> size of its part, as a power of two
    cdef list vacant  # size as a power of two -> parts of this size that no request has
    cdef long long top
    cdef int idle_hits  # of the last lookup: hit blocks that no request holds
    cdef int dropped  # the last blocks of a hit that are computed again, for a drafter
    cdef long long drafts  # tokens that a drafter predicts in a step

    cdef long long blocks_of(self, long long tokens) noexcept nogil
    cdef int block_at(self, Py_ssize_t row, int place) noexcept nogil
    cdef int look_up(self, Py_ssize_t row, long long tokens) except -1 nogil
    cdef int start_with(self, Py_ssize_t row, int hits) except -1
    cdef Py_ssize_t _part(self, Py_ssize_t row) except -1
