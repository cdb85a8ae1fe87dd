cimport cython
from kvtrace.cache.core.radix cimport Leaves, Radix
from kvtrace.cache.structures.queues cimport Queue


cdef enum:
    WRITE_BACK = 0  # of the write policies; the others are the requests of a node before it is copied


@cython.final
cdef class StoragePool:
    cdef Queue order  # the least recently used block first
    cdef readonly long long capacity, loaded, stored, evicted

    cdef long long leading(self, const int[::1] ids, long long start, long long blocks) noexcept nogil
    cdef int read(self, const int[::1] ids, long long start, long long blocks) except -1 nogil
    cdef int write(self, int block) except -1 nogil


@cython.final
cdef class HiRadix(Radix):
    # one value per node, beside those of Radix; an unused number has those of a new leaf
    cdef signed char[::1] device  # its blocks are on the device
    cdef signed char[::1] backed  # its blocks are on the host
    cdef int[::1] device_children
    cdef int[::1] pins  # transfers that read or write its copy on the host
    cdef signed char[::1] declined  # it could not be evicted in this round
    cdef int[::1] after  # a link between these
    cdef int[::1] pinned  # the pinned nodes, once for each pin
    cdef Py_ssize_t pinned_nodes
    cdef Leaves host_leaves  # nodes that the host can evict
    cdef Queue twice  # write_back: nodes that came to be on both tiers; some no longer are
    cdef readonly long long host, host_free
    cdef int threshold
    cdef readonly StoragePool pool
    cdef long long load_blocks, prefetch_blocks
    cdef long long loaded, stored, freed  # blocks of the host
    cdef readonly long long dropped  # blocks that left the tree
    cdef long long restored  # blocks that the last walk computed anew
    cdef long long fetched, fetched_from  # the blocks that came from the pool for the present request, and their place
    cdef int[:, ::1] below  # tier below the device, request -> hit blocks

    cdef int _fetch(self, Py_ssize_t row) except -1 nogil
    cdef int _last_on_device(self, int node) noexcept nogil
    cdef long long _blocks_between(self, int node, int above) noexcept nogil
    cdef int _load_back(self, int node, int above, long long blocks) except -1 nogil
    cdef int _shift_pins(self, int node, int above, int by) except -1 nogil
    cdef int _put_on_device(self, int node) except -1 nogil
    cdef int _count_sources(self, Py_ssize_t row, long long hit, long long loaded) noexcept nogil
    cdef int _count(self, int node) except -1 nogil
    cdef bint _copy_path(self, int node) except -1 nogil
    cdef bint _copy(self, int node) except -1 nogil
    cdef int _pin(self, int node) except -1 nogil
    cdef int _end_transfers(self) except -1 nogil
    cdef int _list_twice(self, int node) except -1 nogil
    cdef int _list_path(self, int node, int above) except -1 nogil
    cdef bint _is_device_leaf(self, int node) noexcept nogil
    cdef int _free_up(self, long long blocks) except -1 nogil
    cdef int _unlist(self, int node) except -1 nogil
    cdef int _evict_host(self, long long blocks) except -1 nogil
    cdef int _forget(self, int node) except -1 nogil
    cdef int _free_copies(self, long long blocks) except -1 nogil
