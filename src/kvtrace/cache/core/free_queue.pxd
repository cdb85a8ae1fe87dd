cimport cython
from kvtrace.cache.core.engine cimport Engine

cdef enum:
    NOTHING = -1  # no copy of a block; no hash


@cython.final
cdef class FreeQueue(Engine):
    cdef int capacity  # also the queue's end: its head is next[capacity], its last block previous[capacity]
    cdef int free  # physical blocks in the queue
    cdef bint unhashed_first
    cdef bint newest_copy
    cdef int[::1] next  # physical block -> the next in the queue
    cdef int[::1] previous
    cdef int[::1] pins  # physical block -> live requests that hold it
    cdef int[::1] holds  # physical block -> the trace's block whose hash it has
    cdef int[::1] copy  # the trace's block -> the copy that is found
    cdef int[::1] later  # physical block -> the copy registered next; after the last comes the first
    cdef int[::1] earlier
    cdef int[::1] held  # the physical blocks of live requests, one request after the other
    cdef long long[::1] begin  # row -> where its physical blocks begin in `held`
    cdef long long top

    cdef int _take(self) except -1 nogil
    cdef int _leave(self, int physical) except -1 nogil
    cdef int _join(self, int physical, int follower) except -1 nogil
    cdef int _register(self, int physical, int block) except -1 nogil
    cdef int _forget(self, int physical) except -1 nogil
    cdef int _queued(self) except -1 nogil
