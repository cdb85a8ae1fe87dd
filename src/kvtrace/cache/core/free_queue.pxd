cimport cython
from kvtrace.cache.core.engine cimport Engine

cdef enum:
    NOTHING = -1  # no copy, or no hash


@cython.final
cdef class FreeQueue(Engine):
    cdef int capacity  # also the queue's sentinel: the head is next[capacity], the last block previous[capacity]
    cdef int free  # number of physical blocks in the queue
    cdef bint unhashed_first
    cdef bint newest_copy
    cdef int[::1] next  # physical block -> the next in the queue
    cdef int[::1] previous
    cdef int[::1] pins  # physical block -> number of live requests that hold it
    cdef int[::1] holds  # physical block -> the trace's block that it caches
    cdef int[::1] copy  # the trace's block -> the copy that lookups find
    cdef int[::1] later  # physical block -> the copy registered next; the list is circular
    cdef int[::1] earlier
    cdef int[::1] held  # the physical blocks of live requests, in order of admission
    cdef long long[::1] begin  # row -> start of its physical blocks in `held`
    cdef long long top

    cdef int _take(self) except -1 nogil
    cdef int _leave(self, int physical) except -1 nogil
    cdef int _join(self, int physical, int follower) except -1 nogil
    cdef int _register(self, int physical, int block) except -1 nogil
    cdef int _forget(self, int physical) except -1 nogil
    cdef int _queued(self) except -1 nogil
