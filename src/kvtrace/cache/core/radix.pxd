cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.structures.queues cimport Queue


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


cdef enum:
    ROOT = 0


cdef class LockedTree(Engine):
    # one value per node; the root is node 0
    cdef int[::1] length  # blocks, or pages; 0 = the node number is unused
    cdef int[::1] parent
    cdef int[::1] children  # number of children
    cdef int[::1] locks  # number of live requests whose path contains it
    cdef long long[::1] used  # time of the last use, by a clock that ticks at each use
    cdef int[::1] unused  # a stack of unused node numbers
    cdef Py_ssize_t unused_nodes
    cdef Leaves leaves  # the unlocked leaves
    cdef public long long free  # blocks, or pages, of no node
    cdef public long long evictable  # those of unlocked nodes
    cdef long long clock
    cdef long long matched  # blocks, or pages, that the last walk matched

    cdef int lock(self, int node, int above) except -1 nogil
    cdef int unlock(self, int node) except -1 nogil
    cdef long long _tick(self) noexcept nogil
    cdef int _settle(self, int node) except -1 nogil
    cdef long long _key(self, int node) noexcept nogil
    cdef int _remove(self, int node) except -1 nogil


cdef enum:
    WRITE_BACK = 0  # of SGLang's write policies; the others are the requests of a node before it is copied


cdef class HostedTree(LockedTree):
    # one value per node, beside those of LockedTree; an unused number has those of a new leaf
    cdef int[::1] requests  # number of requests that inserted it or passed through it: SGLang's hit_count
    cdef signed char[::1] device  # it is on the device
    cdef signed char[::1] backed  # it is on the host
    cdef int[::1] device_children
    cdef int[::1] pins  # transfers that read or write its copy on the host
    cdef signed char[::1] declined  # it could not be evicted in this round
    cdef int[::1] after  # a link between these
    cdef Leaves host_leaves  # nodes that the host can evict
    cdef Queue twice  # write_back: nodes that came to be on both tiers; some no longer are
    cdef readonly long long host, host_free
    cdef int threshold
    cdef long long loaded, stored, freed  # blocks of the host
    cdef readonly long long dropped  # blocks that left the tree

    cdef int _settle_tiers(self, int node) except -1 nogil
    cdef bint _is_device_leaf(self, int node) noexcept nogil
    cdef int _put_on_device(self, int node) except -1 nogil
    cdef int _count(self, int node) except -1 nogil
    cdef bint _copy_path(self, int node) except -1 nogil
    cdef int _demote(self, int node) except -1 nogil
    cdef int _leave_tree(self, int node) except -1 nogil
    cdef int _divide_tiers(self, int upper, int node) except -1 nogil
    cdef bint _copy(self, int node) except -1 nogil
    cdef int _unname(self, int node) except -1 nogil
    cdef bint _has_room_on_host(self, int node) except -1 nogil
    cdef int _free_up(self, long long blocks) except -1 nogil
    cdef int _list_twice(self, int node) except -1 nogil
    cdef int _forget_twice(self, int node) except -1 nogil
    cdef int _evict_host(self, long long blocks) except -1 nogil
    cdef int _forget(self, int node) except -1 nogil
    cdef int _free_copies(self, long long blocks) except -1 nogil
    cdef int _evict(self, int node) except -1 nogil


cdef enum:
    LRU = 0
    MRU = 1
    FIFO = 2
    FILO = 3
    LFU = 4
    SLRU = 5
    PRIORITY = 6


cdef class Radix(HostedTree):
    # one value per node, beside those of LockedTree
    cdef long long[::1] run  # start of its blocks in ids; for output blocks: -1 - the number of the first one
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
    cdef int _pass(self, int node, bint counts, long long priority) except -1 nogil
    cdef int _split(self, int node, int blocks) except -1 nogil
    cdef int _add(self, int parent, long long run, long long blocks, long long priority) except -1 nogil
    cdef int _number(self) noexcept nogil
    cdef bint _take(self, long long blocks) except -1 nogil


cdef class PagedRadix(HostedTree):
    cdef readonly long long page_size, block_size
    cdef readonly long long pages
    cdef long long own  # the name of request 0's own pages; the others follow
    cdef const long long[::1] tokens  # row -> tokens of the prompt
    cdef const long long[::1] named  # row -> leading tokens of it that have a block id
    # one value per node, beside those of LockedTree
    cdef int[::1] row_of  # a request with its pages
    cdef long long[::1] first  # the place of its first page in that request
    cdef int[::1] following  # a node whose first page has the same name, at another place
    cdef int[::1] head  # name -> a node whose first page has it, -1 = none
    cdef int created
    cdef bint ahead
    cdef long long evicted  # pages

    cdef long long pages_of(self, long long tokens) noexcept nogil
    cdef long long token_name(self, Py_ssize_t row, long long token) noexcept nogil
    cdef int match(self, Py_ssize_t row, long long pages) except -1 nogil
    cdef int insert(self, Py_ssize_t row, long long pages) except -1 nogil
    cdef int make_room(self, long long pages) except -1 nogil
    cdef int _child(self, Py_ssize_t row, long long page) noexcept nogil
    cdef long long _name(self, Py_ssize_t row, long long page) noexcept nogil
    cdef int _common(self, int node, Py_ssize_t row, long long pages) noexcept nogil
    cdef int _divide(self, int node, int pages) except -1 nogil
    cdef int _add(self, int parent, Py_ssize_t row, long long page, long long pages) except -1 nogil
    cdef int _list(self, int node) noexcept nogil
    cdef int _unlist(self, int node) noexcept nogil
    cdef int _number(self) except -1 nogil
    cdef _enlarge(self)
