from kvtrace.cache.core.engine cimport Engine

cdef enum:
    ROOT = 0
    LRU = 0
    MRU = 1
    FIFO = 2
    FILO = 3
    LFU = 4
    SLRU = 5
    PRIORITY = 6


cdef class Leaves:
    cdef long long[::1] key  # one value a node
    cdef long long[::1] used
    cdef int[::1] place  # node -> position in the heap, -1 = not in it
    cdef int[::1] heap
    cdef int count

    cdef int put(self, int node, long long key, long long used) except -1 nogil
    cdef int drop(self, int node) except -1 nogil
    cdef bint _before(self, int node, int other) noexcept nogil
    cdef int _set(self, int place, int node) except -1 nogil
    cdef int _rise(self, int place) except -1 nogil
    cdef int _sink(self, int place) except -1 nogil


cdef class Radix(Engine):
    # the tree, one value per node; the root is node 0
    cdef long long[::1] run  # start of its blocks in ids; for output blocks: -1 - the number of the first one
    cdef int[::1] length  # blocks; 0 = the node number is unused
    cdef int[::1] parent
    cdef int[::1] children  # number of children
    cdef int[::1] locks  # number of live requests whose path contains it
    cdef int[::1] requests  # number of requests that inserted it or passed through it: SGLang's hit_count
    cdef long long[::1] rank  # the highest priority of those requests
    cdef long long[::1] used  # time of the last use, by a clock that ticks at each step
    cdef long long[::1] created  # time of creation, by the same clock
    cdef int[::1] unused  # a stack of unused node numbers
    cdef Py_ssize_t unused_nodes
    cdef int[::1] head  # block -> the node that begins with it, -1 = none
    cdef int[::1] held  # row -> the node that a live request locks
    cdef const long long[::1] priority  # row -> the request's priority
    cdef int order
    cdef bint unified
    cdef Leaves leaves  # the unlocked leaves
    cdef long long capacity
    cdef long long free  # blocks
    cdef long long idle  # blocks of unlocked nodes, which are all evictable
    cdef long long clock
    cdef long long matched  # blocks that the last walk matched

    cdef int _match(self, long long start, long long blocks) except -1 nogil
    cdef int _walk(self, long long start, long long blocks, long long counted, long long priority) except -1 nogil
    cdef int _common(self, int node, long long start, long long blocks) noexcept nogil
    cdef int _split(self, int node, int blocks) noexcept nogil
    cdef int _add(self, int parent, long long run, long long blocks, long long priority) noexcept nogil
    cdef int _number(self) noexcept nogil
    cdef long long _tick(self) noexcept nogil
    cdef int _lock(self, int node, int above) except -1 nogil
    cdef int _unlock(self, int node) except -1 nogil
    cdef bint _take(self, long long blocks) noexcept nogil
    cdef int _evict(self, int node) except -1 nogil
    cdef int _settle(self, int node) except -1 nogil
    cdef long long _key(self, int node) noexcept nogil
