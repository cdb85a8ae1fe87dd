cimport cython

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
