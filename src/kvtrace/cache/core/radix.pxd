from kvtrace.cache.core.locked_tree cimport LockedTree

cdef enum:
    LRU = 0
    MRU = 1
    FIFO = 2
    FILO = 3
    LFU = 4
    SLRU = 5
    PRIORITY = 6


cdef class Radix(LockedTree):
    # one value per node, beside those of LockedTree
    cdef long long[::1] run  # start of its blocks in ids; for output blocks: -1 - the number of the first one
    cdef int[::1] requests  # number of requests that inserted it or passed through it: SGLang's hit_count
    cdef long long[::1] rank  # the highest priority of those requests
    cdef long long[::1] created  # time of creation, by the same clock
    cdef int[::1] head  # block -> the node that begins with it, -1 = none
    cdef int[::1] held  # row -> the node that a live request locks
    cdef const long long[::1] priority  # row -> the request's priority
    cdef int order
    cdef bint unified
    cdef long long capacity

    cdef int _match(self, long long start, long long blocks) except -1 nogil
    cdef int _use_path(self, int node, long long nodes) except -1 nogil
    cdef int _walk(self, long long start, long long blocks, long long counted, long long priority) except -1 nogil
    cdef int _common(self, int node, long long start, long long blocks) noexcept nogil
    cdef int _split(self, int node, int blocks) noexcept nogil
    cdef int _add(self, int parent, long long run, long long blocks, long long priority) noexcept nogil
    cdef int _number(self) noexcept nogil
    cdef bint _take(self, long long blocks) noexcept nogil
    cdef int _evict(self, int node) except -1 nogil
