cimport cython
from kvtrace.cache.core.radix cimport PagedRadix, Radix
from kvtrace.cache.structures.queues cimport Queue


@cython.final
cdef class StoragePool:
    cdef Queue order  # the least recently used block first
    cdef readonly long long capacity, loaded, stored, evicted

    cdef long long leading(self, const int[::1] ids, long long start, long long blocks) noexcept nogil
    cdef int read(self, const int[::1] ids, long long start, long long blocks) except -1 nogil
    cdef int write(self, int block) except -1 nogil


@cython.final
cdef class HiRadix(Radix):
    cdef int[::1] pinned  # the nodes that transfers pin, once for each pin
    cdef Py_ssize_t pinned_nodes
    cdef readonly StoragePool pool
    cdef long long load_blocks, prefetch_blocks
    cdef long long restored  # blocks that the last walk computed anew
    cdef long long fetched, fetched_from  # the blocks that came from the pool for the present request, and their place
    cdef int[:, ::1] below  # tier below the device, request -> hit blocks
    cdef bint watches  # `elsewhere` is wanted
    cdef list others  # the trees of all other instances
    cdef int[::1] elsewhere_hit

    cdef int _reach(self, Py_ssize_t row) except -1
    cdef int _fetch(self, Py_ssize_t row) except -1 nogil
    cdef int _last_on_device(self, int node) noexcept nogil
    cdef long long _blocks_between(self, int node, int above) noexcept nogil
    cdef int _load_back(self, int node, int above, long long blocks) except -1 nogil
    cdef int _shift_pins(self, int node, int above, int by) except -1 nogil
    cdef int _count_sources(self, Py_ssize_t row, long long hit, long long loaded) noexcept nogil
    cdef int _pin(self, int node) except -1 nogil
    cdef int _end_transfers(self) except -1 nogil
    cdef int _list_path(self, int node, int above) except -1 nogil


@cython.final
cdef class HiPagedRadix(PagedRadix):
    cdef int[::1] loading  # node -> the last node of a path that is loaded, 0 = it is not
    cdef int[:, ::1] below  # 0, request -> hit blocks on the host
    cdef double load_s, store_s  # seconds a token
    cdef double load_link, store_link  # when the last copy of each direction ends
    cdef public double now, busy
    cdef list to_store, to_load  # nodes whose copies are decided
    cdef long long store_pages, load_pages  # of these
    cdef list storing, loads  # copies under way: (end, nodes)
    cdef public long long inserted, owned  # pages, of the request that inserts
    cdef public long long duplicates
    cdef int best
    cdef long long host_hit

    cdef int see_copies(self) except -1
    cdef int flush(self) except -1
    cdef double start_loading(self) except? -1
    cdef double next_copy(self) except? -1
    cdef bint has_copies(self) noexcept
    cdef int load_back(self, int best, long long pages) except -1
    cdef int _end_load(self, int best) except -1
    cdef double _store(self, long long pages) noexcept nogil
