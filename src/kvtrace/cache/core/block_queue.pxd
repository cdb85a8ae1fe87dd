cimport cython

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
