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
    cdef int[::1] place  # where in the heap, -1 = not there
    cdef int[::1] heap
    cdef int count

    cdef int put(self, int node, long long key, long long used) except -1 nogil
    cdef int drop(self, int node) except -1 nogil
    cdef bint _before(self, int node, int other) noexcept nogil
    cdef int _set(self, int at, int node) except -1 nogil
    cdef int _rise(self, int at) except -1 nogil
    cdef int _sink(self, int at) except -1 nogil


cdef class Radix(Engine):
    # the tree, one value a node; the root is node 0
    cdef long long[::1] run  # where its blocks begin in ids; a run of grown blocks: -1 - the first one's number
    cdef int[::1] length  # blocks, 0 = no such node now
    cdef int[::1] parent
    cdef int[::1] children  # how many
    cdef int[::1] locks  # live requests whose path it lies on
    cdef int[::1] requests  # that inserted it or passed through it: SGLang's hit_count
    cdef long long[::1] rank  # the highest priority of those
    cdef long long[::1] used  # times, by a clock that ticks at each step
    cdef long long[::1] created
    cdef int[::1] unused  # node numbers to be had, a stack
    cdef Py_ssize_t unused_nodes
    cdef int[::1] head  # block -> the node that begins with it, -1 = none
    cdef int[::1] held  # row -> the node that a live request locks
    cdef const long long[::1] priority  # row -> what it asks for
    cdef int order
    cdef Leaves leaves  # those that no live request holds
    cdef long long capacity
    cdef long long free  # blocks
    cdef long long idle  # blocks of unlocked nodes: all of them can be evicted
    cdef long long clock
    cdef long long matched  # blocks that the last walk found

    cdef int _walk(self, long long start, long long blocks, long long counted, long long priority) except -1 nogil
    cdef int _common(self, int node, long long at, long long most) noexcept nogil
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
